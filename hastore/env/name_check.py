"""Whether a name still leads to the file that this process has open.

A file that is removed or renamed while it is open takes bytes and syncs as before, and so does one
whose directory is removed, replaced or mounted over; the next start finds none of them.  So the
identity of the open file is compared with that of the file at its name::

    name_check    device u64, inode u64, path, NUL      in the machine's byte order

An open file keeps its inode number, so equal numbers mean the same file.  Where a file system shows
other numbers for the name than for the open file from the start (some layered ones do), the name
cannot be checked: ``name_check`` is empty.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import FileLostError
from hastore.native.in_use import extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import NamedFile

_IDENTITY: Final = struct.Struct("=QQ")
_HINT: Final = (
    "find out what removed, replaced or covered it; what was written since is in no file that the"
    " next start finds"
)
# The name could not be looked up, which says nothing about the file.
_UNKNOWN: Final = frozenset({errno.EACCES, errno.EINTR, errno.ENOMEM})
GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def name_check_of(descriptor: int, path: str) -> bytes:
    """Return the check of an open file's name; empty if the name does not lead to the file now."""
    try:
        held, named = os.fstat(descriptor), os.stat(path)
    except OSError:
        return b""
    if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
        return b""
    return _IDENTITY.pack(held.st_dev, held.st_ino) + os.fsencode(path) + b"\0"


def lost_name(name_check: bytes) -> str | None:
    """Return what has happened to a name; None if it still leads to its file, or is not known."""
    if not name_check:
        return None
    try:
        found = os.stat(name_check[_IDENTITY.size : -1])
    except OSError as error:
        if error.errno in _UNKNOWN:
            return None
        if error.errno in GONE:
            return "was removed or renamed"
        return f"cannot be looked up any more ({os.strerror(error.errno or 0)})"
    if (found.st_dev, found.st_ino) == _IDENTITY.unpack_from(name_check):
        return None
    return "leads to another file: it was replaced, or something is mounted over it"


def first_lost(named: Sequence[NamedFile]) -> NamedFile | None:
    """Return the first whose name no longer leads to it; blocks.

    In C without the GIL: a log may have thousands of files, and each look-up in Python would wait
    for the event loop to release the GIL.
    """
    if extension is None:
        return next((each for each in named if each.lost_name() is not None), None)
    index: int = extension.first_lost_name(tuple(each.name_check for each in named))
    return None if index < 0 else named[index]


def lost_error(path: str, what: str) -> FileLostError:
    """Return the error for a name of which ``what`` has happened."""
    msg = f"{path} {what} while this node had it open"
    return FileLostError(msg, path=path, hint=_HINT)


@final
@attrs.define(eq=False)
class RealHeldName:
    """A descriptor for the path only (O_PATH): closing it releases no lock of this process."""

    path: str
    _descriptor: int
    name_check: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Take the identity."""
        self.name_check = name_check_of(self._descriptor, self.path)

    @property
    def is_closed(self) -> bool:
        """Whether it was released."""
        return self._descriptor < 0

    def lost_name(self) -> str | None:
        """Compare the identity with that of the file at the name."""
        return None if self.is_closed else lost_name(self.name_check)

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

"""Bytes that outlive a process, but not the machine's boot: files in /dev/shm, or in /run.

Both are tmpfs on Linux: what is stored through a map is there for the next process, also after
SIGKILL, and gone after a reboot.  A file that another user owns, or could have put there, is not
used: anybody may write to /dev/shm.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
from typing import Final, final

import attrs

from hastore.errors import StoreLockedError

_FOLDERS: Final = ("/dev/shm", "/run")  # noqa: S108 - checked below: owner, kind and mode
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@final
@attrs.define(eq=False)
class RealKeptMemory:
    """A mapped file, locked by this process."""

    buffer: mmap.mmap
    _descriptor: int

    def close(self) -> None:
        """Unmap the file and release its lock."""
        if self._descriptor >= 0:
            self.buffer.close()
            os.close(self._descriptor)
            self._descriptor = -1


@final
class RealMachineMemory:
    """Files in a memory file system, one a name."""

    def hold(self, name: str, size: int) -> RealKeptMemory | None:
        """Map the file of ``name``, made if it is not there, and lock it (flock)."""
        for folder in _FOLDERS:
            path = f"{folder}/hastore-{name}"
            descriptor = _open(path)
            if descriptor is None:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # All blocks: a store to a hole in a full tmpfs is SIGBUS, not an error.
                os.posix_fallocate(descriptor, 0, size)
                return RealKeptMemory(mmap.mmap(descriptor, size), descriptor)
            except BlockingIOError as error:
                os.close(descriptor)
                raise StoreLockedError(f"another process holds {path}", path=path) from error
            except (OSError, ValueError):
                os.close(descriptor)
        return None


def forget(name: str) -> None:
    """Remove what is kept under a name that nobody will hold again."""
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/hastore-{name}")


def _open(path: str) -> int | None:
    """Open a file that this user owns; None if that is not possible."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if is_own and found.st_nlink == 1 and not found.st_mode & _OTHERS_MAY_WRITE:
            return descriptor
    os.close(descriptor)
    return None

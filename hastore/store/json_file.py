"""One of the small JSON files below ``DIR/config``; a crash leaves at least one whole copy.

::

    topics.json          the content stored last
    topics.json.bak      the content before that
    topics.json.torn     an unreadable file, set aside when the next one was stored

A store renames the file to ``.bak`` and writes the new one (beside it, fsynced, renamed, directory
fsynced), so a crash at any instant leaves one of the two whole.  What RocketMQ's broker reads is
read here, too: its own files, and those that an operator has edited (``fastjson_text``).

A *torn* file is empty, cut off or has zeros, as a crash leaves it.  A file that is whole but not
JSON was edited by mistake, and its rows are still in it, so a start refuses it (``check``).

Invariant: ``load`` never raises.  If a file cannot be read, a warning names it and its ``.bak`` is
read; if that fails too, the content is an empty object.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.errors import DiskError, ProtocolError, TableFileError
from hastore.trace import logger
from hastore.wire import fastjson_text
from hastore.wire.fastjson_text import FastjsonError
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Collection

    from hastore.env.interface import Disk

BACKUP_SUFFIX: Final = ".bak"
TORN_SUFFIX: Final = ".torn"

_log = logger("store")


@final
@attrs.define(eq=False)
class JsonFile:
    """One file; ``load`` and ``store`` block, and never run at the same time."""

    disk: Disk
    path: str
    # Why the file at ``path`` cannot be read; None if it can, or if there is none.
    _torn: str | None = attrs.field(default=None, init=False)

    def check(self, members: Collection[str] = ()) -> str | None:
        """Return why the file is torn and what ``load`` reads instead; None if it is not torn.

        Each of ``members`` has to be an object if it is there.  Raises TableFileError if the file
        that ``load`` would read is whole and cannot be read.
        """
        value, instead = self._load(refuses=True)
        path = self.path if instead is None else self.path + BACKUP_SUFFIX
        for name in members:
            member = value.get(name)
            if member is not None and not isinstance(member, dict):
                raise _refused(path, f"{path}: {name} is not an object")
        return None if instead is None or self._torn is None else f"{self._torn}; {instead}"

    def load(self) -> dict[str, Any]:
        """Return the content stored last, or the one before; empty if neither can be read."""
        value, instead = self._load()
        if instead is not None:
            reason = self._torn or "it is not there, but its backup is"
            _log.warning("json_file_unreadable", path=self.path, reason=reason, instead=instead)
        return value

    def _load(self, *, refuses: bool = False) -> tuple[dict[str, Any], str | None]:
        """Return the content, and what was read instead of the file if there should be one."""
        backup = self.path + BACKUP_SUFFIX
        value, self._torn = self._read(self.path, refuses=refuses)
        if value is not None:
            return value, None
        value, reason = self._read(backup, refuses=refuses)
        if value is not None:
            return value, backup
        if self._torn is None and reason is None:
            return {}, None  # a new directory
        return {}, f"starting without it: {reason or 'no backup'}"

    def _read(self, path: str, *, refuses: bool) -> tuple[dict[str, Any] | None, str | None]:
        """Return the content, or why there is none (None and None: no such file)."""
        try:
            if not self.disk.exists(path):
                return None, None
            # A file that was never written is empty; after a power cut one may hold zeros.
            return _parse(self.disk.read_file(path), path), None
        except FastjsonError as error:
            if refuses and not error.is_torn:
                raise _refused(path, str(error)) from error
            return None, str(error)
        except DiskError as error:
            return None, str(error)

    def store(self, value: dict[str, Any]) -> None:
        """Replace the content durably; DiskError leaves the old content readable."""
        data = json.dumps(value, indent=2).encode()
        self.disk.make_dirs(self.path.rpartition("/")[0] or ".")
        if self.disk.exists(self.path):
            # An unreadable file must not replace a readable backup.
            suffix = BACKUP_SUFFIX if self._torn is None else TORN_SUFFIX
            self.disk.rename(self.path, self.path + suffix)
        self.disk.write_file(self.path, data)
        self._torn = None


def _parse(data: bytes, what: str) -> dict[str, Any]:
    """Read a file's content.  Raises FastjsonError."""
    try:
        return loads_object(data, what)  # many times faster, and enough for what a broker writes
    except ProtocolError:
        return fastjson_text.loads_object(data, what)


def _refused(path: str, message: str) -> TableFileError:
    hint = f"correct the file, or move it away to start with {path}{BACKUP_SUFFIX}"
    if path.endswith(BACKUP_SUFFIX):
        hint = "correct the file, or move it away to start without this table"
    return TableFileError(f"{message}; nothing was changed", path=path, hint=hint)

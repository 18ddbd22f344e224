"""One of the small JSON files below ``DIR/config``; a crash leaves at least one whole copy.

::

    topics.json          the content stored last
    topics.json.bak      the content before that
    topics.json.torn     an unreadable file, set aside when the next one was stored

A store renames the file to ``.bak`` and writes the new one (beside it, fsynced, renamed, directory
fsynced), so a crash at any instant leaves one of the two whole.  RocketMQ's own files can be read
too: its maps have bare integer keys.

Invariant: reading never raises.  If a file is torn or cannot be read, a warning names it and its
``.bak`` is read; if that fails too, the content is an empty object.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.errors import DiskError, ProtocolError
from hastore.trace import logger
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
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

    def load(self) -> dict[str, Any]:
        """Return the content stored last, or the one before; empty if neither can be read."""
        backup = self.path + BACKUP_SUFFIX
        value, self._torn = self._read(self.path)
        if value is not None:
            return value
        value, reason = self._read(backup)
        if self._torn is None and value is None and reason is None:
            return {}  # a new directory
        _log.warning(
            "json_file_unreadable",
            path=self.path,
            reason=self._torn or "it is not there, but its backup is",
            instead=f"starting without it: {reason or 'no backup'}" if value is None else backup,
        )
        return {} if value is None else value

    def _read(self, path: str) -> tuple[dict[str, Any] | None, str | None]:
        """Return the content, or why there is none (None and None: no such file)."""
        try:
            if not self.disk.exists(path):
                return None, None
            data = self.disk.read_file(path)
            # A file that was never written is empty; after a power cut one may hold zeros.
            return loads_object(data, path), None
        except (DiskError, ProtocolError) as error:
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

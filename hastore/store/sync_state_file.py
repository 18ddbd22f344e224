"""The SyncStateSet that a master without a coordinator keeps: ``DIR/sync_state_set.json``.

::

    {
     "schema": "hastore.sync-state-set/1",
     "epoch": 7,                  of the master that has written it
     "members": [1, 2, 3],        node ids: all that was acknowledged is on each of them
     "crc32": 2298464990          of all bytes before this line
    }

A stale set is dangerous: a node that it names, and that has left since, could be elected.  So there
is no backup, and a damaged file is an error.

Invariant: a crash leaves the set stored last, or, during ``store``, perhaps the one before.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.epoch_history import EPOCH_MAX
from hastore.errors import ProtocolError, SyncStateFileError
from hastore.store.reserve_file import write_beside_reserve
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from hastore.env.interface import Disk

SYNC_STATE_FILE: Final = "sync_state_set.json"
SCHEMA: Final = "hastore.sync-state-set/1"
# What the checksum covers, and the checksum.
_FILE: Final = re.compile(rb'(.*\n) "crc32": ([0-9]{1,10})\n}\n', re.DOTALL)


@final
@attrs.frozen
class StoredSet:
    """The members of an epoch's SyncStateSet, the master included."""

    epoch: int
    members: frozenset[int]

    def encode(self) -> bytes:
        """Return the file's bytes."""
        content = {"schema": SCHEMA, "epoch": self.epoch, "members": sorted(self.members)}
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(content[key])}" for key in content)
        covered = f"{{\n{lines},\n".encode()
        return b'%s "crc32": %d\n}\n' % (covered, zlib.crc32(covered))

    @classmethod
    def decode(cls, data: bytes) -> StoredSet | str:
        """Return the set in a file's bytes, or why it cannot be read."""
        found = _FILE.fullmatch(data)
        if found is None:
            return "it does not end with its checksum"
        if int(found[2]) != zlib.crc32(found[1]):
            return f"its checksum should be {zlib.crc32(found[1])}, and is {int(found[2])}"
        try:
            content = loads_object(data, "it")
        except ProtocolError as error:
            return str(error)
        if content.get("schema") != SCHEMA:
            return f"its schema is {content.get('schema')!r}, not {SCHEMA!r}"
        epoch, members = content.get("epoch"), content.get("members")
        if type(epoch) is not int or not 0 <= epoch <= EPOCH_MAX:
            return f"its epoch is {epoch!r}"
        if not isinstance(members, list) or not members:
            return f"its members are {members!r}"
        if any(type(node_id) is not int or node_id < 1 for node_id in members):
            return f"its members are {members!r}"
        return cls(epoch, frozenset(members))


@final
@attrs.define(eq=False)
class SyncStateFile:
    """The file in a store's directory; ``load`` and ``store`` block, and never run side by side."""

    disk: Disk
    path: str

    def load(self) -> StoredSet | None:
        """Return the set; None if there is no file.

        Raises SyncStateFileError for a damaged file, DiskError for one that the disk does not
        return.
        """
        if not self.disk.exists(self.path):
            return None
        found = StoredSet.decode(self.disk.read_file(self.path))
        if isinstance(found, str):
            msg = f"{self.path}: {found}; it says which nodes have all that was acknowledged"
            hint = "remove it only if this node alone has all that was acknowledged"
            raise SyncStateFileError(msg, path=self.path, hint=hint)
        return found

    def store(self, stored: StoredSet) -> None:
        """Replace the file durably.  Raises DiskError."""
        write_beside_reserve(self.disk, self.path, stored.encode())

"""The permissions in force on a node: those of its file, taken again whenever that changes.

::

    stamp differs ── the same a look later ── read, parse ──┬── valid: it replaces the table
                                                            └── not: the table stays; named

A node looks every ``LOOK_S``; a file that is being written is left alone until it has kept its
stamp for one look.  ``reload`` does not wait for a look.  At a start a file that is not valid is an
error.

Invariant: the table is the whole of one version of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.access.permissions_file import parse_permissions
from hastore.access.secret_file import read_secret_file
from hastore.broker.access.failed_attempts import FailedAttempts
from hastore.broker.observe.node_status import AccessStatus
from hastore.errors import ConfigError, DiskError
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.access.permissions import PermissionTable
    from hastore.env.interface import Env, FileStamp

LOOK_S: Final = 2.0

_log = logger("access")


@final
@attrs.define(eq=False)
class NodeAccess:
    """A node's permissions, from ``open_access``."""

    env: Env
    file: str
    table: PermissionTable
    attempts: FailedAttempts = attrs.field(factory=FailedAttempts, init=False)
    _stamp: FileStamp | None  # of the version in force
    _seen: FileStamp | None = attrs.field(default=None, init=False)  # at the last look
    _refused: FileStamp | None = attrs.field(default=None, init=False)  # of the version not taken
    _fault: str | None = attrs.field(default=None, init=False)
    _hint: str | None = attrs.field(default=None, init=False)
    _reading: trio.Lock = attrs.field(factory=trio.Lock, init=False)  # the last read is the newest

    def status(self) -> AccessStatus:
        """Return a snapshot."""
        return AccessStatus(
            file=self.file,
            accounts=len(self.table.accounts),
            failed_attempts=self.attempts.total,
            fault=self._fault,
            hint=self._hint,
        )

    async def run(self) -> None:
        """Take the file when it changes, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look at the file once."""
        async with self._reading:
            await self._look()

    async def reload(self) -> bool:
        """Read the file as it is now; return whether that version is in force."""
        async with self._reading:
            return await self._take()

    async def _look(self) -> None:
        try:
            stamp = await self.env.offload.run(lambda: self.env.disk.stamp(self.file))
        except DiskError as error:
            self._seen = self._refused = None
            self._refuse(str(error), "put it back, or stop the node and take [access] file away")
            return
        before, self._seen = self._seen, stamp
        if stamp == self._stamp:  # a version that was refused may be replaced by the former one
            self._fault = self._hint = None
        elif stamp == before and stamp != self._refused and not await self._take():
            self._refused = stamp

    async def _take(self) -> bool:
        try:
            table, taken = await self.env.offload.run(lambda: _read(self.env, self.file))
        except ConfigError as error:
            self._refuse(str(error), error.hint)
            return False
        self.table, self._stamp = table, taken
        self._fault = self._hint = self._refused = None
        _log.info("permissions_taken", file=self.file, accounts=len(table.accounts))
        return True

    def _refuse(self, reason: str, hint: str | None) -> None:
        """Keep the table; log each reason once."""
        if reason != self._fault:
            _log.warning("permissions_not_taken", reason=reason, next=hint)
        self._fault, self._hint = reason, hint


async def open_access(file: str | None, env: Env) -> NodeAccess | None:
    """Return the permissions of a file; None for no file: everybody may do everything.

    Raises ConfigError if the file is not valid.
    """
    if file is None:
        return None
    table, stamp = await env.offload.run(lambda: _read(env, file))
    return NodeAccess(env, file, table, stamp)


def _read(env: Env, file: str) -> tuple[PermissionTable, FileStamp]:
    data, stamp = read_secret_file(env.disk, file)
    return parse_permissions(data, file), stamp

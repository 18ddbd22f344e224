"""Keeps the refused slaves over restarts: ``DIR/refused_slaves.json``, and who writes it.

The file is replaced as a whole (beside, fsync, rename, fsync of the directory) in a worker thread,
soon after the table has changed; a clean stop waits for that.  A master that is killed within those
milliseconds has not remembered the refusal, and need not have: the slave comes again, and is ahead
unless the log has grown past its end by then.

An operator who removes the file while the master runs allows all slaves again: it is looked for
when a pair that is in it comes, and before it is written.

Invariants: reading raises nothing, and changes nothing; a file that cannot be read is named in a
warning, and set aside as ``.torn`` before another one takes its place; what cannot be written
counts all the same, and is written with the next refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.ha.refused_slaves import RefusalOutcome, RefusedSlave, RefusedSlaves
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.env.interface import Disk, Env

FILE_NAME: Final = "refused_slaves.json"
TORN_SUFFIX: Final = ".torn"

_log = logger("ha")


@final
@attrs.define(eq=False)
class RefusedSlavesFile:
    """The table and its file; made by ``load``, written by ``run``."""

    env: Env
    path: str
    table: RefusedSlaves  # what counts, written yet or not
    is_torn: bool  # what is at ``path`` could not be read
    is_there: bool  # the file is at ``path``: it was read from there, or written
    _is_dirty: bool = attrs.field(default=False, init=False)
    _not_written_because: str | None = attrs.field(default=None, init=False)  # as logged
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    @classmethod
    def load(cls, env: Env, data_dir: str) -> RefusedSlavesFile:
        """Read the file of a directory; blocks."""
        path = f"{data_dir}/{FILE_NAME}"
        table, wrong = RefusedSlaves(), None
        is_there = True
        try:
            is_there = env.disk.exists(path)
            if is_there:
                table, wrong = RefusedSlaves.decode(env.disk.read_file(path), path)
        except DiskError as error:
            wrong = str(error)
        if wrong is not None:
            _log.warning("refused_slaves_unreadable", path=path, reason=wrong, kept=len(table))
        return cls(env, path, table, is_torn=wrong is not None, is_there=is_there)

    def find(self, address: str, offset: int) -> RefusedSlave | None:
        """Give the refusal that a first report repeats, unless an operator has removed the file."""
        refused = self.table.find(address, offset)
        if refused is None or self._was_removed():
            return None
        if self._is_dirty:
            self._wake.wakeup()  # it could not be written before
        return refused

    def remember(self, refused: RefusedSlave, min_offset: int) -> RefusalOutcome:
        """Refuse this pair from now on."""
        self._was_removed()
        is_changed = self.table.forget_before(min_offset)
        outcome = self.table.add(refused)
        if is_changed or outcome is RefusalOutcome.REMEMBERED:
            self._changed()
        elif self._is_dirty:
            self._wake.wakeup()
        return outcome

    def forget(self, address: str, offset: int) -> None:
        """Allow a pair again."""
        if self.table.forget(address, offset):
            self._changed()

    def _changed(self) -> None:
        self._is_dirty = True
        self._wake.wakeup()

    def _was_removed(self) -> bool:
        """Whether an operator has removed the file; then nobody is refused for it any more."""
        try:
            if not self.is_there or self.env.disk.exists(self.path):
                return False
        except DiskError:
            return False
        _log.warning("refused_slaves_cleared", path=self.path, rows=len(self.table))
        self.table = RefusedSlaves()
        self.is_there = self.is_torn = self._is_dirty = False
        return True

    async def run(self) -> None:
        """Write what has changed, until cancelled; what has changed by then is written first."""
        try:
            while True:
                await self._wake.wait_for_running()
                await self._write()
        finally:
            with trio.CancelScope(shield=True):
                await self._write()

    async def _write(self) -> None:
        if not self._is_dirty:
            return
        self._is_dirty = False
        data, torn = self.table.encode(), self.is_torn
        if torn:
            self.is_there = False  # it is we who take it away
        try:
            await self.env.offload.run(lambda: self._replace(self.env.disk, data, torn=torn))
        except DiskError as error:
            self._is_dirty = True
            if self._not_written_because != str(error):  # it is tried again at each refusal
                self._not_written_because = str(error)
                _log.warning("refused_slaves_not_written", path=self.path, reason=str(error))
        else:
            self.is_there, self.is_torn, self._not_written_because = True, False, None

    def _replace(self, disk: Disk, data: bytes, *, torn: bool) -> None:
        if torn and disk.exists(self.path):
            disk.rename(self.path, self.path + TORN_SUFFIX)
        disk.write_file(self.path, data)

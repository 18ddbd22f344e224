"""What the simulator knows of each node's log: its bytes as they were appended, and its epochs.

The bytes are copied as they appear, so a cut, a crash or a lost tail can be compared with what was
there before.  Whoever edits the files of a node that is down says so: what they differ in is a hole
until the log has those bytes again.

Invariant: while a node's log is open, ``data`` is its content after each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.epoch_history import EpochHistory
from hastore.sim.cluster import DATA_DIR
from hastore.sim.log_bytes import log_range
from hastore.sim.violation import ViolationError
from hastore.store.epoch_file import EPOCH_FILE, decode_epochs
from hastore.store.log.store_directory import COMMIT_LOG_DIR

if TYPE_CHECKING:
    from hastore.broker.node.master import Master
    from hastore.broker.node.slave import Slave
    from hastore.sim.cluster import Boot, SimNode
    from hastore.sim.inode import Inode
    from hastore.store.commit_log import CommitLog
    from hastore.store.recovery.log_cut import LogCut

EPOCH_PATH: Final = f"{DATA_DIR}/{EPOCH_FILE}"
LOG_PATH: Final = f"{DATA_DIR}/{COMMIT_LOG_DIR}"


@final
@attrs.frozen
class LostFiles:
    """What was removed under one process of a node, when, and where its log ended then."""

    path: str
    boot: Boot
    at: float
    end: int

    @property
    def has_log(self) -> bool:
        """Whether the log is gone, and not only what can be made from it."""
        return self.path == LOG_PATH


@final
@attrs.frozen
class Hole:
    """Bytes that a log had at ``start``, and has lost to damage or to a repair."""

    start: int
    lost: bytes

    @property
    def end(self) -> int:
        """The offset after them."""
        return self.start + len(self.lost)


@final
@attrs.define(eq=False)
class NodeLog:
    """One node's log; ``opened`` counts its openings, and tells two of them apart."""

    sim_node: SimNode
    is_sync: bool  # the node acknowledges what is on its platter
    data: bytearray = attrs.field(factory=bytearray)
    opened: int = 0
    boot: int = 0  # whose opening was the last, and the one before
    former_boot: int = 0
    dispatched: int = 0  # consumers of this node have been able to see what is below
    foreign: bytearray | None = None  # the log of another group that was put here; None: it is ours
    hole: Hole | None = None  # None if the log has everything below its end
    # It has what was lost as another node was elected: what it shows counts once it is cut.
    is_outlived: bool = False
    lost: LostFiles | None = None  # what was removed under a process of the node; None: nothing
    _commit_log: CommitLog | None = None
    _cuts: list[LogCut] = attrs.field(factory=list)  # all that were seen
    _epoch_inode: Inode | None = None
    _epochs: EpochHistory = attrs.field(factory=EpochHistory)
    _file_size: int = 0

    @property
    def name(self) -> str:
        """The node's name."""
        return self.sim_node.name

    @property
    def end(self) -> int:
        """The end of its log."""
        return len(self.data)

    def is_open_in(self, role_node: Master | Slave) -> bool:
        """Whether ``role_node`` has the log open."""
        return not role_node.commit_log.mapped_file_queue.is_closed

    def update(self, role_node: Master | Slave) -> bytes | None:
        """Take what was appended; return the bytes that an opening lacks, None if it lacks none.

        Raises ViolationError if bytes have changed.
        """
        log = role_node.commit_log
        missing = None
        if log is not self._commit_log:
            missing = self._reopened(log)
        end = log.max_offset
        if end < len(self.data):
            raise ViolationError("offsets", f"{self.name}: the log went back to {end}")
        if end > len(self.data):
            self.data += self.read(len(self.data), end, durable=False)
        if self.hole is not None:
            self._look_at(self.hole, end)
        self.dispatched = max(self.dispatched, role_node.reput_message_service.reput_offset)
        return missing

    def _reopened(self, log: CommitLog) -> bytes | None:
        self._commit_log, self._file_size = log, log.file_size
        self.opened += 1
        self.former_boot, self.boot = self.boot, self.sim_node.boots
        end = min(log.max_offset, len(self.data))
        if self.hole is not None:
            self._look_at(self.hole, end)  # nothing need have been appended since it was filled
        if self.read(0, end, durable=False) != self.data[:end]:
            raise ViolationError("changed", f"{self.name}: bytes below {end} have changed")
        missing = bytes(self.data[end:])
        del self.data[end:]
        self.dispatched = min(self.dispatched, end)
        return missing or None

    def on_disk(self) -> bytes:
        """Return the bytes of the log that its disk has now."""
        return self.read(0, self.end, durable=False)

    def edited(self, before: bytes) -> None:
        """Compare the log with what it was ``before``; its node is down, and a person edited it."""
        seen, hole, had = self.on_disk(), self.hole, bytearray(before)
        for at, (one, other) in enumerate(zip(before, seen, strict=True)):
            if one != other:
                self.data[at] = other
        if hole is not None:
            had[hole.start : hole.end] = hole.lost
        pairs = enumerate(zip(had, seen, strict=True))
        differing = [at for at, (one, other) in pairs if one != other]
        self.hole = None
        if differing:
            start, end = differing[0], differing[-1] + 1
            self.hole = Hole(start, bytes(had[start:end]))

    def _look_at(self, hole: Hole, log_end: int) -> None:
        """Forget a hole once the log has those bytes again, or ends before them."""
        end = max(min(hole.end, log_end), hole.start)
        self.data[hole.start : end] = self.read(hole.start, end, durable=False)
        if log_end <= hole.start or self.data[hole.start : hole.end] == hole.lost:
            self.hole = None

    def replaced(self) -> None:
        """Forget the log: an older copy of its directory, or none, is in its place."""
        self.data.clear()
        self.dispatched = 0
        self.foreign = self.hole = self.lost = None
        self.is_outlived = False

    def read(self, start: int, end: int, *, durable: bool) -> bytes:
        """Return bytes from its disk, or fewer."""
        return log_range(self.sim_node.live_disk, start, end, self._file_size or 1, durable=durable)

    def holds(self, start: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether its disk would have ``data`` at ``start`` after the worst that it promises."""
        return self.read(start, start + len(data), durable=self.is_sync) == data

    def new_cut(self, role_node: Master | Slave) -> LogCut | None:
        """Return the cut that was made since the last call.

        A start shows the newest one by the wall clock, perhaps an earlier one again.
        """
        cut: LogCut | None = getattr(role_node, "last_cut", None)
        if cut is None or cut in self._cuts:
            return None
        self._cuts.append(cut)
        self.is_outlived = False
        return cut

    def epoch_inode(self) -> Inode | None:
        """Return the file of its epochs; each store makes another one."""
        return self.sim_node.live_disk.inodes.get(EPOCH_PATH)

    def epochs(self) -> EpochHistory:
        """Return the epochs on its disk.  Raises ViolationError for an illegal list."""
        inode = self.epoch_inode()
        if inode is None:
            return EpochHistory()
        if inode is not self._epoch_inode:
            found = decode_epochs(inode.durable)
            if isinstance(found, str):
                raise ViolationError("epochs", f"{self.name}: {found}")
            self._epoch_inode, self._epochs = inode, found
        return self._epochs

    def wiped(self) -> None:
        """Forget everything: the disk is empty."""
        self.replaced()
        self._cuts.clear()

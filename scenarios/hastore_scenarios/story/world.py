"""The World: everything that a scenario may do and see, and nothing about how it is done.

A scenario is an async function on a `World`.  It names nodes, puts messages, breaks things and
waits for conditions; it never sees a process, a port or a directory, so the same text runs on real
processes, on processes between network namespaces and in the simulator
(``hastore_scenarios.worlds``).

Rules for who implements it: every operation and every action goes into ``history``; an action has
taken effect when its coroutine returns; nothing of the world survives its ``async with`` block.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus, SlaveStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from hastore.broker.observe.node_status import NodeStatus
    from hastore_scenarios.judge.history import History, Operation

    Condition = Callable[[NodeStatus], bool]

DEFAULT_TOPIC = "Scenario"


class ScenarioFailed(AssertionError):
    """Something that a scenario expected did not come true."""


class NodeFailed(ScenarioFailed):
    """A node could not be started or ended by itself; ``output`` is the end of what it logged."""

    def __init__(self, message: str, *, output: str) -> None:
        super().__init__(f"{message}\n{output}" if output else message)
        self.output = output


class ScenarioSkipped(Exception):
    """This machine, or this kind of world, cannot tell the scenario; the text says why."""


class LinkMode(enum.Enum):
    """What the network between a slave and its master does."""

    OPEN = "open"
    CUT = "cut"  # nothing passes, nothing is reported: a partition
    CUT_TO_SLAVE = "cut-to-slave"  # the master's bytes are held back, the slave's pass
    CUT_TO_MASTER = "cut-to-master"  # the slave's reports are held back, the log passes
    REFUSE = "refuse"  # connections are reset and new ones refused


class Node(Protocol):
    """One node: a name and what it is at the moment.  Its log stays with its name."""

    @property
    def name(self) -> str:
        """The name given by the scenario."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and neither stopped nor killed."""


class Link(Protocol):
    """The network between one slave and its master.  All of it takes effect at once."""

    @property
    def mode(self) -> LinkMode:
        """What it does at the moment."""

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Interrupt it; bytes on their way are held back and delivered on ``heal``."""

    def reset(self) -> None:
        """Reset the connections that there are; new ones pass."""

    def slow(self, bytes_per_s: int) -> None:
        """Let the master's bytes pass at this rate only."""

    def split(self, chunk_size: int) -> None:
        """Hand bytes over in pieces of at most this size, both ways."""

    def heal(self) -> None:
        """Let everything pass again, at full speed."""


class DiskFaults(Protocol):
    """What may befall one node's disk.  The first four while it runs, the others while it does not.

    A node whose disk is to fail while it runs is started with ``faulty_disk=True``.
    """

    def full(self) -> None:
        """Let nothing more be created or grow: ENOSPC."""

    def slow(self, extra_s: float) -> None:
        """Let each sync take longer by that."""

    def fail_sync(self) -> None:
        """Let the next sync of the log fail with EIO, as ext4 does: once."""

    def heal(self) -> None:
        """Let the disk be well again."""

    async def tear(self, size: int) -> None:
        """Let the last ``size`` bytes of the log be zeros: they never reached the disk."""

    async def expire(self, files: int) -> None:
        """Remove the log's oldest files, as expiry does."""

    async def wipe(self) -> None:
        """Give the node an empty disk."""


class Stranger(Protocol):
    """A connection to a master's HA port from somebody who is no slave."""

    async def send(self, data: bytes) -> None:
        """Send raw bytes; a closed connection is no error here."""

    async def read_to_end(self, within_s: float = 5.0) -> bytes:
        """Return everything that the master says until it closes, or for that long."""

    async def close(self) -> None:
        """Hang up."""


@attrs.frozen
class Tally:
    """Operations, counted by status."""

    operations: Sequence[Operation]

    @property
    def counts(self) -> dict[str, int]:
        """How many have which status (or NO_ANSWER, NOT_SENT)."""
        counts: dict[str, int] = {}
        for operation in self.operations:
            counts[operation.label] = counts.get(operation.label, 0) + 1
        return counts

    def all_are(self, status: PutMessageStatus) -> bool:
        """Whether there is at least one, and all were answered with ``status``."""
        return bool(self.operations) and all(put.status is status for put in self.operations)

    def __str__(self) -> str:
        """``95 PUT_OK, 5 FLUSH_SLAVE_TIMEOUT``."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count} {label}" for label, count in ordered) or "nothing"


class World(Protocol):
    """A cluster to tell stories about."""

    @property
    def history(self) -> History:
        """Everything so far."""

    @property
    def now_s(self) -> float:
        """Seconds since the world began."""

    # -- nodes

    async def start_master(
        self,
        name: str,
        *,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        faulty_disk: bool = False,
        **config: Any,
    ) -> Node:
        """Start a new node as a master; ``config`` are fields of hastore.config by name."""

    async def start_slave(
        self,
        name: str,
        *,
        master: Node,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        slave_from: SlaveStart = SlaveStart.EARLIEST,
        faulty_disk: bool = False,
        **config: Any,
    ) -> Node:
        """Start a new node as a slave of ``master``."""

    async def stop(self, node: Node) -> None:
        """Stop it as an operator does (SIGTERM); fails unless it ends cleanly within 5 s."""

    async def kill(self, node: Node) -> None:
        """End it as a crash does (SIGKILL)."""

    async def pause(self, node: Node) -> None:
        """Freeze it (SIGSTOP): its connections stay open, nothing is answered."""

    async def resume(self, node: Node) -> None:
        """Let it run on (SIGCONT)."""

    async def restart(self, node: Node) -> None:
        """Start a node that was stopped or killed, as what it was, on the log that it has."""

    async def promote(
        self, slave: Node, *, role: BrokerRole = BrokerRole.SYNC_MASTER, **config: Any
    ) -> None:
        """Start a slave's log as a master; the slave is stopped first if it runs."""

    async def follow(self, node: Node, *, master: Node, **config: Any) -> None:
        """Start a node's log as a slave of ``master``; the node is stopped first if it runs."""

    async def wait_exit(self, node: Node, *, within_s: float = 60.0) -> int:
        """Wait until a node has ended by itself; gives its exit code, or raises ScenarioFailed."""

    def link(self, slave: Node) -> Link:
        """Return the network between a slave and its master."""

    def disk(self, node: Node) -> DiskFaults:
        """Return the faults of a node's disk."""

    # -- producing

    async def put(
        self, node: Node, body: bytes = b"", *, topic: str = DEFAULT_TOPIC, wait: bool = True
    ) -> Operation:
        """Send one message and wait for its answer; an empty body stands for a small one."""

    async def put_many(
        self,
        node: Node,
        count: int,
        *,
        size: int = 1024,
        in_flight: int = 64,
        topic: str = DEFAULT_TOPIC,
        wait: bool = True,
    ) -> Tally:
        """Send ``count`` messages of ``size`` bytes and wait for all answers."""

    def load(
        self,
        node: Node,
        *,
        size: int = 1024,
        in_flight: int = 16,
        topic: str = DEFAULT_TOPIC,
        wait: bool = True,
    ) -> AbstractAsyncContextManager[Tally]:
        """Put without pause for the length of the block, through broken links and restarts."""

    # -- seeing

    async def status(self, node: Node) -> NodeStatus:
        """Ask a node what it is doing."""

    async def wait_until(
        self, node: Node, what: str, condition: Condition, *, within_s: float = 60.0
    ) -> NodeStatus:
        """Ask ``node`` again and again until ``condition`` holds; ScenarioFailed if never."""

    async def wait_healthy(self, slave: Node, *, within_s: float = 60.0) -> None:
        """Wait until ``slave`` is connected and has acknowledged all that its master has."""

    async def dial_ha(self, master: Node) -> Stranger:
        """Connect to the master's HA port as a stranger."""

    # -- telling

    def say(self, text: str) -> None:
        """Put a sentence into the timeline."""

    def expect(self, truth: object, text: str, **seen: object) -> None:
        """Put an expectation into the timeline; ScenarioFailed if ``truth`` is false."""


def describe_seen(seen: Mapping[str, object]) -> str:
    """``name=value name=value``, for the text of an expectation."""
    return " ".join(f"{name}={value}" for name, value in seen.items())

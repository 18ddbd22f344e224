"""The World: the interface through which a scenario acts on its cluster and observes it.

A scenario is an async function of a `World`.  It starts nodes, puts messages, injects faults and
waits for conditions; it never sees a process, a port or a directory, so the same story runs on real
processes, in network namespaces and in the simulator (``hastore_scenarios.worlds``).

Rules for implementations: every operation and every action goes into ``history``; an action has
taken effect when its coroutine returns; everything ends with the world's ``async with`` block.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus, SlaveStart
from hastore_scenarios.judge.history import count_labels

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.cluster.group_records import GroupView
    from hastore.cluster.operations import Change
    from hastore_scenarios.judge.history import History, Operation

    Condition = Callable[[NodeStatus], bool]
    Operate = Callable[..., Change]  # one of hastore.cluster.operations

STORY_TOPIC = "Scenario"
GROUP_NAME = "group"  # of the first replica group


class ScenarioFailed(AssertionError):
    """An expectation of a scenario was not met."""


class NodeFailed(ScenarioFailed):
    """A node could not be started, or ended by itself; ``output`` is the end of its output."""

    def __init__(self, message: str, *, output: str) -> None:
        super().__init__(f"{message}\n{output}" if output else message)
        self.output = output


class ScenarioSkipped(Exception):
    """This machine, or this kind of world, cannot run the scenario; the text says why."""


class LinkMode(enum.Enum):
    """The state of the link between a slave and its master."""

    OPEN = "open"
    CUT = "cut"  # nothing passes, and no error is reported: a partition
    CUT_TO_SLAVE = "cut-to-slave"  # the master's bytes are held back, the slave's pass
    CUT_TO_MASTER = "cut-to-master"  # the slave's reports are held back, the log passes
    REFUSE = "refuse"  # connections are reset and new ones refused


class CutStep(enum.Enum):
    """A step of a cut, in the order in which they are made (``hastore.store.recovery.cut``)."""

    COPY = "copy"  # the bytes go to trimmed/
    DESCRIPTION = "description"  # of the cut, beside them
    INTENT = "intent"  # cut.json: from here on the cut will be finished
    CHECKPOINT = "checkpoint"
    LOG = "log"
    QUEUES = "queues"
    INDEX = "index"
    EPOCHS = "epochs"
    FINISH = "finish"  # cut.json is removed


class Node(Protocol):
    """One node of the world; its log stays with its name."""

    @property
    def name(self) -> str:
        """Its name in the story."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and neither stopped nor killed."""

    @property
    def node_id(self) -> int:
        """Its id in its replica group, from 1 on; 0: it is in none."""


class Link(Protocol):
    """The network between one slave and its master; all actions take effect at once."""

    @property
    def mode(self) -> LinkMode:
        """The current state."""

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Interrupt the link; bytes on their way are held back and delivered on ``heal``."""

    def reset(self) -> None:
        """Reset all connections; new ones pass."""

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate of the master's bytes."""

    def split(self, chunk_size: int) -> None:
        """Deliver bytes in pieces of at most ``chunk_size``, in both directions."""

    def heal(self) -> None:
        """Let everything pass again, at full speed."""


class DiskFaults(Protocol):
    """Faults of one node's disk: the first four while it runs, the others while it is stopped.

    Start the node with ``faulty_disk=True`` for faults while it runs.
    """

    def full(self) -> None:
        """Let no file be created or grow: ENOSPC."""

    def slow(self, extra_s: float) -> None:
        """Delay each sync by ``extra_s``."""

    def fail_sync(self) -> None:
        """Let the next sync of the log fail with EIO, once, as on ext4."""

    def heal(self) -> None:
        """End all faults."""

    async def tear(self, size: int) -> None:
        """Overwrite the last ``size`` bytes of the log with zeros, as if never written."""

    async def expire(self, files: int) -> None:
        """Remove the log's oldest files, as expiry does."""

    async def wipe(self) -> None:
        """Replace the disk by an empty one."""


class Stranger(Protocol):
    """An unidentified peer: a raw connection to a master's HA port."""

    async def send(self, data: bytes) -> None:
        """Send raw bytes; do nothing if the connection is closed."""

    async def read_to_end(self, within_s: float = 5.0) -> bytes:
        """Return all bytes received until the master closes, or until the time is over."""

    async def close(self) -> None:
        """Close the connection."""


class Backup(Protocol):
    """What a coordinator had at one time."""


class Coordinator(Protocol):
    """The etcd of the replica groups: its faults, and what a person asks of it.

    ``group`` is a group's name; by default that of the first group.
    """

    async def stop(self, servers: int | None = None) -> None:
        """Stop some of its servers, None: all; without a majority nothing is answered."""

    async def start(self) -> None:
        """Start those that were stopped."""

    async def cut_off(self, *nodes: Node) -> None:
        """Let nothing pass between these nodes and any server; no error is reported."""

    async def reconnect(self, *nodes: Node) -> None:
        """Let everything pass again."""

    async def backup(self) -> Backup:
        """Return all that it has, to restore it later."""

    async def restore(self, backup: Backup) -> None:
        """Go back to a backup: stop, replace what is there, start again."""

    async def view(self, group: str = GROUP_NAME) -> GroupView:
        """Return what it says of a group."""

    async def wait_until(
        self,
        what: str,
        condition: Callable[[GroupView], bool],
        *,
        group: str = GROUP_NAME,
        within_s: float = 60.0,
    ) -> GroupView:
        """Wait until ``condition`` holds for what it says.  Raises ScenarioFailed."""

    async def change(
        self, operation: Operate, *args: object, group: str = GROUP_NAME, **how: object
    ) -> Change:
        """Do what `hastore cluster` does: an operation of ``hastore.cluster.operations``.

        ``args`` and ``how`` are what it takes besides the group.  Raises OperationRefusedError.
        """


@attrs.frozen
class Tally:
    """Operations, counted by status."""

    operations: Sequence[Operation]

    @property
    def counts(self) -> dict[str, int]:
        """Operations by status (or NO_ANSWER, NOT_SENT), most frequent first."""
        return count_labels(operation.label for operation in self.operations)

    def all_are(self, status: PutMessageStatus) -> bool:
        """Whether there is at least one, and all were answered with ``status``."""
        return bool(self.operations) and all(put.status is status for put in self.operations)

    def __str__(self) -> str:
        """``95 PUT_OK, 5 FLUSH_SLAVE_TIMEOUT``."""
        return ", ".join(f"{count} {label}" for label, count in self.counts.items()) or "nothing"


class World(Protocol):
    """A cluster for a story."""

    @property
    def history(self) -> History:
        """All operations and events so far."""

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

    async def start_group(
        self,
        count: int = 3,
        *,
        name: str = GROUP_NAME,
        coordinator: int = 0,
        role: BrokerRole = BrokerRole.SYNC_MASTER,
        flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        faulty_disk: bool = False,
        **config: Any,
    ) -> Sequence[Node]:
        """Start a replica group; return its nodes (a, b, c, …), of which the first is master.

        All of them are in the SyncStateSet.  ``role`` is that of each master.  A slave that is
        started with one of them as its master observes the group, and never counts.

        ``coordinator``: so many etcd servers decide on roles, and the story does not; ``ttl_ms``,
        ``failsafe`` and ``priority`` may be among ``config``.  Raises ScenarioSkipped where there
        is no etcd.

        Another group of the same cluster has a ``name`` of its own, and the same etcd.
        """

    @property
    def coordinator(self) -> Coordinator:
        """The etcd that decides on the roles of the groups."""

    async def wait_master(
        self, epoch: int = 1, *, of: Node | None = None, within_s: float = 60.0
    ) -> Node:
        """Wait until the coordinator has let a node be master of ``epoch`` or a later one.

        Returns that node, which serves; it is of the group of a node, None: of the first group.
        Raises ScenarioFailed.
        """

    async def wait_routes(
        self, *masters: Node, topic: str = STORY_TOPIC, within_s: float = 60.0
    ) -> None:
        """Wait until all running nodes name these masters, one of each group, to clients.

        Raises ScenarioFailed.
        """

    async def cut_off(self, node: Node, *others: Node) -> None:
        """Let nothing pass between a node of a group and these; no error is reported.

        Raises ScenarioSkipped in a world whose nodes have one network.
        """

    async def reconnect(self, node: Node) -> None:
        """Let everything pass again between a node and all others."""

    async def stop(self, node: Node) -> None:
        """Stop a node as an operator does (SIGTERM).  Raises NodeFailed if it fails or hangs."""

    async def kill(self, node: Node) -> None:
        """Crash a node (SIGKILL)."""

    async def pause(self, node: Node) -> None:
        """Freeze a node (SIGSTOP): its connections stay open, requests get no answer."""

    async def resume(self, node: Node) -> None:
        """Let a node run on (SIGCONT).

        Nobody tells a node of a replica group what it has missed: a master that was replaced
        takes itself for the master until ``follow``.
        """

    async def restart(self, node: Node) -> None:
        """Start a node that has ended again, in the same role and on its log."""

    async def promote(
        self,
        slave: Node,
        *,
        role: BrokerRole | None = None,
        members: Sequence[Node] | None = None,
        force: bool = False,
        **config: Any,
    ) -> None:
        """Start a slave's log as a master; the slave is stopped first if it runs.

        ``role`` None: SYNC_MASTER.  A node of a replica group becomes the master of the next epoch
        without a restart, and all others that run and are not frozen follow it.  ``members`` None:
        its set begins with the nodes of the former one that can be reached.  Raises NotInSetError
        for a node outside that set, unless with ``force``.
        """

    async def follow(self, node: Node, *, master: Node, **config: Any) -> None:
        """Start a node's log as a slave of ``master``; the node is stopped first if it runs.

        A node of a replica group is told that ``master`` is its master, and is not restarted.
        """

    async def demote(self, node: Node) -> None:
        """Let the master of a replica group step down: the group has none until ``promote``."""

    async def wait_exit(self, node: Node, *, within_s: float = 60.0) -> int:
        """Wait until a node has ended by itself; return its exit code.  Raises ScenarioFailed."""

    def link(self, slave: Node) -> Link:
        """Return the network between a slave and its master."""

    def disk(self, node: Node) -> DiskFaults:
        """Return the faults of a node's disk."""

    # -- puts

    async def put(
        self, node: Node, body: bytes = b"", *, topic: str = STORY_TOPIC, wait: bool = True
    ) -> Operation:
        """Send one message and wait for its answer; an empty ``body`` becomes a small one."""

    async def put_many(
        self,
        node: Node,
        count: int,
        *,
        size: int = 1024,
        in_flight: int = 64,
        topic: str = STORY_TOPIC,
        wait: bool = True,
    ) -> Tally:
        """Send ``count`` messages of ``size`` bytes and wait for all answers."""

    def load(
        self,
        node: Node,
        *,
        size: int = 1024,
        in_flight: int = 16,
        topic: str = STORY_TOPIC,
        wait: bool = True,
        every_ms: int = 0,
    ) -> AbstractAsyncContextManager[Tally]:
        """Put without pause for the length of the block, through broken links and restarts.

        ``every_ms``: one put each so many milliseconds, at most.
        """

    def group_load(
        self,
        *,
        of: Node | None = None,
        every_ms: int = 5,
        size: int = 1024,
        in_flight: int = 16,
        topic: str = STORY_TOPIC,
        wait: bool = True,
    ) -> AbstractAsyncContextManager[Tally]:
        """Put to the master that the coordinator names, one put each ``every_ms`` at most.

        ``of``: a node of the group; None: the first group.
        """

    # -- waiting

    async def status(self, node: Node) -> NodeStatus:
        """Return a node's status.  Raises UnreachableError if it does not answer."""

    async def wait_until(
        self, node: Node, what: str, condition: Condition, *, within_s: float = 60.0
    ) -> NodeStatus:
        """Ask for the status until ``condition`` holds; return it.  Raises ScenarioFailed."""

    async def wait_healthy(self, slave: Node, *, within_s: float = 60.0) -> None:
        """Wait until ``slave`` is connected and has acknowledged all that its master has."""

    async def dial_ha(self, master: Node) -> Stranger:
        """Connect to the master's HA port as an unidentified peer."""

    async def die_in_cut(self, node: Node, step: CutStep) -> None:
        """Start a node of a replica group again, and kill it just before a step of its cut.

        The cut may have been begun earlier.  The group was started with ``faulty_disk=True``.
        Raises ScenarioFailed if the step is not made within two minutes.
        """

    # -- what nodes have

    async def log_bytes(self, node: Node, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a node's log, fewer if it ends before."""

    async def cut_bytes(self, node: Node) -> bytes:
        """Return the bytes that a node kept of its newest cut; none without a cut."""

    async def consumed(self, *nodes: Node, topic: str = STORY_TOPIC) -> Counter[str]:
        """Read a topic to its end as a consumer that is given these nodes; count UNIQ_KEYs.

        It reads the other groups that have the topic, too.
        """

    # -- the timeline

    def say(self, text: str) -> None:
        """Add a sentence to the timeline."""

    def expect(self, truth: object, text: str, **seen: object) -> None:
        """Add an expectation to the timeline.  Raises ScenarioFailed if ``truth`` is false."""


def members_of(status: NodeStatus) -> tuple[int, ...]:
    """Return the node ids of the SyncStateSet in a master's status; none for any other node."""
    return () if status.sync_state is None else status.sync_state.members


def describe_seen(seen: Mapping[str, object]) -> str:
    """Return ``name=value name=value`` for the text of an expectation."""
    return " ".join(f"{name}={value}" for name, value in seen.items())

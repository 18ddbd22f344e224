"""The node behind a remoting server, as the server uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hastore.broker.clock.clock_readings import ClockReadings
    from hastore.broker.clock.clock_verdict import ClockReading
    from hastore.broker.group_directory import GroupDirectory
    from hastore.broker.observe.coordinator_status import CoordinatorStatus
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.broker.quotas import QuotaRefusals
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.watched_files import ReloadedFiles
    from hastore.message import Message
    from hastore.status import BrokerRole
    from hastore.store.message_store import MessageStore
    from hastore.wire.config_tables import DeletedTopic


@final
@attrs.frozen(kw_only=True)
class RoleWish:
    """Who is to be the master of an epoch; without an id and an address: nobody is."""

    epoch: int
    master_id: int | None = None
    master_address: tuple[str, int] | None = None  # its client port
    members: frozenset[int] | None = None  # of its SyncStateSet


@final
@attrs.frozen(kw_only=True)
class PromiseWish:
    """A master without its coordinator asks a member not to stand for election for a while."""

    group: str
    epoch: int
    master_id: int
    ttl_s: float


class RoleControl(Protocol):
    """A node whose role may change."""

    def coordinator_status(self) -> CoordinatorStatus | None:
        """Return what the coordinator has it do; None: it has no coordinator."""

    @property
    def coordinator_files(self) -> ReloadedFiles | None:
        """The files by which it proves to its coordinator who it is; None: it has none."""

    def coordinator_clocks(self) -> Sequence[ClockReading]:
        """Return what the clocks of the coordinator's servers said last; old readings too."""

    def promise(self, wish: PromiseWish, /) -> None:
        """Promise not to stand for ``ttl_s`` from now on.  Raises RequestFailedError if not."""

    async def recognised(self) -> None:
        """Wait until its coordinator knows this start of it, or does not answer.

        Never returns for a node that is refused: that ends.
        """

    @property
    def takes_remote_roles(self) -> bool:
        """Whether other machines may change its role."""

    async def change_role(self, wish: RoleWish, /) -> None:
        """Begin a change of its role; return before it is done.

        Raises HastoreError if it is refused.
        """


class RequestTarget(Protocol):
    """A master, a slave, or a test's stand-in."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def broker_name(self) -> str:
        """The broker's name in routes: its replica group's, else its own."""

    @property
    def cluster(self) -> str:
        """The cluster's name."""

    @property
    def role(self) -> BrokerRole:
        """The node's role."""

    @property
    def takes_puts(self) -> bool:
        """Whether it serves as a master: no slave, and none that stops or has given up its role."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Its client port, as bound; None if it has none."""

    @property
    def role_control(self) -> RoleControl | None:
        """What may change its role; None: its role is fixed."""

    @property
    def directory(self) -> GroupDirectory | None:
        """What it knows of its group; None: it is in none, or asks nobody."""

    @property
    def message_store(self) -> MessageStore:
        """The store that consumers read from."""

    @property
    def dispatched_offset(self) -> int:
        """Offset of the log below which every record is in its queue and in the index."""

    def submit(self, message: Message) -> GroupCommitRequest:
        """Take a message without waiting or raising; the request holds the outcome."""

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Take messages of one topic and queue, all or none."""

    async def delete_queues(self, deleted: Callable[[], Mapping[str, DeletedTopic]]) -> None:
        """Remove the queues of deleted topics; ``deleted`` returns all that count, and are durable.

        Raises DiskError.
        """

    def status(self) -> NodeStatus:
        """Return a snapshot of the node."""

    def found_damage(self, physic_offset: int, what: str) -> None:
        """Show that a record inside the log is damaged."""

    @property
    def quota_refusals(self) -> QuotaRefusals:
        """What its clients were refused because a quota was used up."""

    @property
    def peer_clocks(self) -> ClockReadings:
        """What the clocks of peers said last."""

    def has_peer_at(self, host: str) -> bool:
        """Whether a peer of the replication is connected from a machine: its clock counts."""

    def delay_offsets(self) -> dict[int, int]:
        """Return the next delayed message to deliver of each level, as far as it is confirmed."""

    def explain(self, last: int) -> dict[str, Any]:
        """Explain the last puts that were not PUT_OK.  Raises RequestFailedError on a slave."""

"""What the remoting server asks of the node behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.message import Message
    from hastore.status import BrokerRole
    from hastore.store.message_store import MessageStore


class RequestTarget(Protocol):
    """A master, a slave, or a test's stand-in."""

    @property
    def name(self) -> str:
        """The broker's name."""

    @property
    def cluster(self) -> str:
        """The cluster's name."""

    @property
    def role(self) -> BrokerRole:
        """What the node is."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Where clients reach it, as bound; None where it has no client port."""

    @property
    def message_store(self) -> MessageStore:
        """What consumers read from."""

    def submit(self, message: Message) -> GroupCommitRequest:
        """Take a message without waiting; never raises, the request says what came of it."""

    def submit_batch(self, messages: Sequence[Message]) -> GroupCommitRequest:
        """Take messages of one topic and queue, all or none."""

    def status(self) -> NodeStatus:
        """Say what the node is doing."""

    def explain(self, last: int) -> dict[str, Any]:
        """Say why the last puts that were not PUT_OK were not; RequestFailedError from a slave."""

"""The consumers that are connected: groups, their members, and their subscriptions.

::

    heartbeat ─► members of each group ─► changed? ─► NOTIFY_CONSUMER_IDS_CHANGED to all members
    connection closed, unregistered, no heartbeat for consumer_timeout_ms ──┘

A client that is a producer only is in ``producers``, and is dropped for the same reasons.

A heartbeat names all groups of one client: it has left those that it no longer names.  Nothing here
is kept on disk; every client sends its next heartbeat within seconds, and a reset of offsets that
members have not learned yet ends with the process.

Kept is what each client's last heartbeat said of its groups, whose size has a limit in
``read_heartbeat``.  A group's subscriptions are its members': what a client said goes with it, or
with its next heartbeat.

Invariants: a group is in the table exactly while it has members; a member's connection is open;
each of a group's subscriptions is in the last heartbeat of one of its members.
"""

from __future__ import annotations

import itertools
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.groups.producer_manager import Member, ProducerManager, connection_to_dict
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.wire.heartbeat_data import subscription_to_dict
from hastore.wire.liberal_json import Items, Rows
from hastore.wire.remoting_codes import FLAG_ONE_WAY, RequestCode
from hastore.wire.remoting_command import RemotingCommand

CONNECTED_MAX: Final = 16_384  # groups
_LANGUAGE_SIZE_MAX: Final = 32  # characters of a client's language that are kept
_SUBSCRIPTIONS_OF_A_PIECE: Final = 16  # of 4,096 characters each, which JSON may write sixfold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hastore.broker.reply import ClientConnection
    from hastore.wire.heartbeat_data import ConsumerData, HeartbeatData, Subscription


@attrs.frozen(kw_only=True)
class ConsumerMember(Member):
    """One consumer of a group."""

    data: ConsumerData = attrs.field(eq=False)  # of its last heartbeat
    newest: int = attrs.field(eq=False)  # version of its subscriptions


@final
@attrs.define(eq=False)
class ConsumerGroup:
    """A group with at least one member; ``data`` is of the last heartbeat."""

    name: str
    data: ConsumerData
    members: dict[ClientConnection, ConsumerMember] = attrs.field(factory=dict)

    def join(self, client: ClientConnection, member: ConsumerMember) -> bool:
        """Update members and subscriptions; return whether members or the topics have changed."""
        topics, before = self.topics, self.members.get(client)
        data = attrs.evolve(member.data, group=self.name)
        self.members[client] = member
        if before is not None and before.data != data:
            self._rely_on_members()
        self._subscribe(data)
        # One object for all members that say the same.
        data = self.data if self.data == data else data
        self.members[client] = attrs.evolve(member, data=data)
        return before != member or topics != self.topics

    def leave(self, client: ClientConnection) -> None:
        """Remove a member, with what it said unless another one says so, too."""
        del self.members[client]
        if self.members:
            self._rely_on_members()

    def _rely_on_members(self) -> None:
        """Take the data of the member with the newest subscription."""
        self.data = max(self.members.values(), key=attrgetter("newest")).data

    def _subscribe(self, data: ConsumerData) -> None:
        """Update the subscriptions by a member's.

        The newest version of a topic's subscription counts, so members that made the same one at
        different times do not keep changing it (RocketMQ's ``updateSubscription``).
        """
        known = {subscription.topic: subscription for subscription in self.data.subscriptions}
        newest = []
        for subscription in data.subscriptions:
            old = known.get(subscription.topic)
            newest.append(
                subscription if old is None or subscription.version > old.version else old
            )
        self.data = attrs.evolve(data, subscriptions=tuple(newest))

    @property
    def topics(self) -> set[str]:
        """The topics of its subscriptions."""
        return {subscription.topic for subscription in self.data.subscriptions}

    def subscription(self, topic: str) -> Subscription | None:
        """Return the group's subscription to a topic, or None."""
        for subscription in self.data.subscriptions:
            if subscription.topic == topic:
                return subscription
        return None


@final
@attrs.define(eq=False)
class ConsumerManager:
    """The table of groups; ``run`` drops clients that send no heartbeat."""

    timeout_ms: int
    # Whether a group's members are notified of changes.
    notifies: Callable[[str], bool] = attrs.field(default=lambda _group: True)
    groups: dict[str, ConsumerGroup] = attrs.field(factory=dict, init=False)
    producers: ProducerManager = attrs.field(factory=ProducerManager, init=False)
    # Of each client, when its last heartbeat came (trio time) and its groups; the oldest first.
    _clients: dict[ClientConnection, tuple[float, frozenset[str]]] = attrs.field(
        factory=dict, init=False
    )
    _topics: Counter[str] = attrs.field(factory=Counter, init=False)  # groups subscribed to each
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # Of each group the offsets that were reset (222), by topic and queue, until a member pulls from
    # there, and until when they count at most (trio time); the oldest first.
    _resets: dict[str, tuple[float, dict[tuple[str, int], int]]] = attrs.field(
        factory=dict, init=False
    )

    def heartbeat(
        self, client: ClientConnection, heartbeat: HeartbeatData, language: str, version: int
    ) -> None:
        """Process a heartbeat, and notify the members of each group that changed."""
        if client.is_closed:
            return
        language = language[:_LANGUAGE_SIZE_MAX]
        producer = Member(client_id=heartbeat.client_id, language=language, version=version)
        self.producers.heartbeat(client, producer, heartbeat.producer_groups)
        now_in = {consumer.group for consumer in heartbeat.consumers}
        _, was_in = self._clients.pop(client, (0.0, frozenset()))
        changed = list(was_in - now_in)
        for name in changed:
            self._leave(client, name)
        for consumer in heartbeat.consumers:
            group = self.groups.get(consumer.group)
            before = set() if group is None else group.topics
            if group is None:
                group = self.groups[consumer.group] = ConsumerGroup(consumer.group, consumer)
            member = ConsumerMember(
                client_id=heartbeat.client_id,
                language=language,
                version=version,
                data=consumer,
                newest=max((one.version for one in consumer.subscriptions), default=0),
            )
            if group.join(client, member):
                changed.append(consumer.group)
            self._resubscribe(before, group.topics)
        if now_in or heartbeat.producer_groups:
            # The groups' own names, not copies of them by each client.
            names = frozenset(self.groups[name].name for name in now_in)
            self._clients[client] = trio.current_time(), names
            if self._wake.is_waiting:
                self._wake.wakeup()
        self._notify(changed)

    def unregister(self, client: ClientConnection, group: str) -> None:
        """Remove a member from a group that it leaves."""
        last_heard, groups = self._clients.get(client, (0.0, frozenset[str]()))
        if group not in groups:
            return
        self._clients[client] = last_heard, groups - {group}
        self._leave(client, group)
        self._notify([group])

    def client_gone(self, client: ClientConnection) -> None:
        """Forget a client whose connection has ended."""
        _, groups = self._clients.pop(client, (0.0, frozenset[str]()))
        self.producers.client_gone(client)
        for name in groups:
            self._leave(client, name)
        self._notify(groups)

    def _leave(self, client: ClientConnection, name: str) -> None:
        group = self.groups[name]
        before = group.topics
        group.leave(client)
        if not group.members:
            del self.groups[name]
        self._resubscribe(before, group.topics if group.members else set())

    def _resubscribe(self, before: set[str], now: set[str]) -> None:
        """Count a group for the topics that it subscribes to ``now``."""
        self._topics.update(now - before)
        for topic in before - now:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]

    def _notify(self, changed: Iterable[str]) -> None:
        for name in changed:
            group = self.groups.get(name)
            if group is None or not self.notifies(name):
                continue
            command = RemotingCommand(
                code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                flag=FLAG_ONE_WAY,
                ext_fields={"consumerGroup": name},
            )
            for client in tuple(group.members):
                client.notify(command)

    async def run(self) -> None:
        """Drop clients without a heartbeat for ``timeout_ms``, until cancelled."""
        timeout_s = self.timeout_ms / 1000
        while True:
            client = next(iter(self._clients), None)
            if client is None:
                await self._wake.wait_for_running()
                continue
            deadline = self._clients[client][0] + timeout_s
            if deadline <= trio.current_time():
                self.client_gone(client)
            else:
                await trio.sleep_until(deadline)

    # -- offsets that were reset -----------------------------------------------------------------

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Remember for ``timeout_ms`` what members still have to learn; offsets are by queue.

        A member that pulls nothing for so long reads from a slave, or may as well have left.  A
        group keeps this while it has no members: they may come back with old positions.
        """
        now = trio.current_time()
        pending = self._pending(group)
        self._resets.pop(group, None)
        old = itertools.takewhile(lambda name: self._resets[name][0] <= now, self._resets)
        for name in tuple(old):
            del self._resets[name]
        if group in self.groups or pending:
            pending |= {(topic, queue_id): offset for queue_id, offset in offsets.items()}
            self._resets[group] = now + self.timeout_ms / 1000, pending

    def _pending(self, group: str) -> dict[tuple[str, int], int]:
        deadline, pending = self._resets.get(group, (0.0, dict[tuple[str, int], int]()))
        return pending if deadline > trio.current_time() else {}

    def _is_member(self, group: str, client: ClientConnection) -> bool:
        found = self.groups.get(group)
        return found is not None and client in found.members

    def is_overtaken(self, group: str, topic: str, queue_id: int, client: ClientConnection) -> bool:
        """Whether a member's commit is of a position from before a reset of the offset."""
        return (topic, queue_id) in self._pending(group) and self._is_member(group, client)

    def take_reset(
        self, group: str, topic: str, queue_id: int, client: ClientConnection
    ) -> int | None:
        """Return the offset at which a member's next pull is to begin, once; None: as it wants."""
        if group not in self._resets or not self._is_member(group, client):
            return None
        return self._pending(group).pop((topic, queue_id), None)

    # -- queries ---------------------------------------------------------------------------------

    def has_topic(self, topic: str) -> bool:
        """Whether a group with members is subscribed to a topic."""
        return topic in self._topics

    def client_ids(self, group: str) -> list[str]:
        """Return the members' client ids; empty for an unknown group."""
        found = self.groups.get(group)
        return [] if found is None else [member.client_id for member in found.members.values()]

    def connections(self, group: str) -> dict[str, Any] | None:
        """Return RocketMQ's ConsumerConnection, the body of 203; None for an unknown group.

        Its rows are converted when they are written (``dumps_in_pieces``).
        """
        found = self.groups.get(group)
        if found is None:
            return None
        data = found.data
        return {
            "connectionSet": Items(tuple(found.members.items()), connection_to_dict),
            "consumeFromWhere": data.consume_from_where.value,
            "consumeType": data.consume_type.value,
            "messageModel": data.message_model.value,
            "subscriptionTable": Rows(
                {subscription.topic: subscription for subscription in data.subscriptions},
                subscription_to_dict,
                _SUBSCRIPTIONS_OF_A_PIECE,
            ),
        }

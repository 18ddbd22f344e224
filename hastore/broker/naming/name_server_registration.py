"""Registers a node at RocketMQ name servers while it serves in a role.

::

    each server   connect ─► 103, all topics ─► 30 s, or a changed topic ─► 103 ─► …
                                   │ topics that are gone ─► 105, 216, some at a time ─► 103
                     ▲           │ refused, no answer, closed
                     └─ back-off ┘
    the end       104, and the connection is closed

A master registers as broker id 0 once it serves, with its epoch as ``stateVersion``, so that an
older master cannot take its place back; a slave under its node id, or 1 outside of a group.  The
nodes of a group have one broker name: the group's.  A role ends with its registration, and the next
begins with another.

A group's master only closes the connection, and the name server forgets it at once: servers of
RocketMQ 4 unregister by id, and id 0 may be its successor's by then.

A registration adds topics to a name server and takes none away.  So for each topic that is gone a
master asks what the server knows, after its registration, which keeps the broker known there, and
in rounds.  If no other broker has the topic, it is deleted there (216); else, if it was deleted,
the next registration shows it once more, without permissions: 216 would take it from the others,
too, and they register again only when their own topics change.  A topic that may only have been
forgotten keeps its row there: its next message makes it again.

Invariant: nothing here delays or ends the node; a name server that cannot be used is logged once
for each reason, and tried again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.broker.group_directory import MASTER_ID
from hastore.broker.port.routes import WILDCARDS
from hastore.concurrency.tcp import bound_address, describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import HastoreError, ProtocolError, RequestFailedError
from hastore.ha.client_port_link import ClientPortLink, open_client_port_link
from hastore.topic import DEFAULT_TOPIC
from hastore.trace import logger
from hastore.wire import liberal_json
from hastore.wire.broker_registration import BrokerRegistration
from hastore.wire.config_tables import PERM_READ, TopicConfig
from hastore.wire.remoting_codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.group_directory import GroupDirectory
    from hastore.broker.groups.topic_config_manager import TopicConfigManager
    from hastore.config import MasterConfig, SlaveConfig
    from hastore.wire.remoting_command import RemotingCommand

Address = tuple[str, int]


class RunningNode(Protocol):
    """A master or a slave."""

    @property
    def config(self) -> MasterConfig | SlaveConfig:
        """Its configuration."""

    @property
    def directory(self) -> GroupDirectory | None:
        """What it knows of its group."""

    @property
    def epoch(self) -> int | None:
        """The epoch that it is master of; None for a slave, and outside of a group."""

    @property
    def address(self) -> Address | None:
        """Its client port."""


INTERVAL_S: Final = 30.0
BACK_OFF_S: Final = (0.5, 30.0)
UNREGISTER_TIMEOUT_S: Final = 1.0
WITHDRAWN_AT_ONCE: Final = 100  # topics, in two requests each, before the next registration
_CLASSIC_SLAVE_ID: Final = 1
# Topics of every RocketMQ broker: a name server refuses a new one that registers only one.
_SYSTEM_TOPICS: Final = (
    TopicConfig(topic="SELF_TEST_TOPIC", read_queue_nums=1, write_queue_nums=1, perm=PERM_READ),
    TopicConfig(topic="OFFSET_MOVED_EVENT", read_queue_nums=1, write_queue_nums=1, perm=PERM_READ),
)

_log = logger("broker")


@final
@attrs.frozen(kw_only=True)
class BrokerIdentity:
    """As what a node registers."""

    broker_name: str
    broker_id: int
    epoch: int | None  # of its master; None: outside of a group, or not known
    ha_address: Address | None
    is_of_group: bool


def register(
    nursery: trio.Nursery,
    node: RunningNode,
    topics: TopicConfigManager,
    broker_id: int,
    ha_address: Address | None,
) -> None:
    """Start the registration of a node that serves in a role, if it names any name server."""
    config, directory = node.config, node.directory
    if not config.name_servers:
        return
    group = config.replica_group if directory is None else directory.broker_name
    identity = BrokerIdentity(
        broker_name=group or config.name,
        broker_id=broker_id,
        epoch=node.epoch,
        ha_address=ha_address,
        is_of_group=group is not None,
    )
    nursery.start_soon(NameServerRegistration(node, identity, topics, config.name_servers).run)


def slave_id(node_id: int | None) -> int:
    """Return the broker id of a slave."""
    return _CLASSIC_SLAVE_ID if node_id is None else node_id


@final
@attrs.define(eq=False)
class NameServerRegistration:
    """Keeps ``target`` registered at ``servers``; ``run`` until the role ends."""

    target: RunningNode
    identity: BrokerIdentity
    topics: TopicConfigManager
    servers: tuple[Address, ...]
    interval_s: float = INTERVAL_S
    _wakes: dict[Address, WaitNotifyObject] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Follow the table of topics."""
        self._wakes = {server: WaitNotifyObject() for server in self.servers}
        self.topics.watchers.append(self._changed)

    def _changed(self) -> None:
        for wake in self._wakes.values():
            wake.wakeup()

    async def run(self) -> None:
        """Register at all servers until cancelled, then unregister."""
        async with trio.open_nursery() as nursery:
            for server in self.servers:
                nursery.start_soon(self._keep, server)

    async def _keep(self, server: Address) -> None:
        reason: str | None = None  # why it is not registered there, as logged
        pause_s = BACK_OFF_S[0]
        known: dict[str, bool] = {}
        while True:
            try:
                async with open_client_port_link(server) as link:
                    # It may know them from an earlier role.
                    known |= dict.fromkeys(self.topics.deleted, False)
                    await self._register(link, known)
                    _log.info(
                        "name_server_registered",
                        name_server=describe(server),
                        broker=self.identity.broker_name,
                        broker_id=self.identity.broker_id,
                    )
                    reason, pause_s = None, BACK_OFF_S[0]
                    try:
                        await self._repeat(link, known)
                    finally:
                        await self._unregister(link)
            except (HastoreError, OSError) as error:
                if str(error) != reason:
                    reason = str(error)
                    _log.warning(
                        "name_server_unusable", name_server=describe(server), reason=reason
                    )
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACK_OFF_S[1])

    async def _repeat(self, link: ClientPortLink, known: dict[str, bool]) -> None:
        """Register again after changes and from time to time; raises once the link is closed."""
        while True:
            if not await self._withdraw_some(link, known):
                await self._wait(link)
            await self._register(link, known)

    async def _wait(self, link: ClientPortLink) -> None:
        """Wait for a change, the interval, or the end of the link."""

        async def until_changed() -> None:
            await self._wakes[link.address].wait_for_running()
            nursery.cancel_scope.cancel()

        closed: HastoreError | OSError | None = None
        with trio.move_on_after(self.interval_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_changed)
                try:
                    await link.until_closed()
                except (HastoreError, OSError) as error:
                    closed = error
                    nursery.cancel_scope.cancel()
        if closed is not None:
            raise closed

    async def _register(
        self, link: ClientPortLink, known: dict[str, bool], withdrawn: Sequence[str] = ()
    ) -> None:
        """Register all topics, and ``withdrawn`` ones without permissions.

        ``known`` gets the topics that the server may know now: whether each may be forgotten.
        """
        registration = self._registration(link, withdrawn)
        known |= {name: config.auto_created for name, config in self.topics.topics.items()}
        body = registration.body()
        code = RequestCode.REGISTER_BROKER
        answer = await link.ask(code, registration.fields(body), body)
        if answer.code != ResponseCode.SUCCESS:
            msg = f"it refused the registration with {answer.code}: {answer.remark or 'no reason'}"
            raise RequestFailedError(msg, code=answer.code)

    async def _withdraw_some(self, link: ClientPortLink, known: dict[str, bool]) -> bool:
        """Withdraw topics that are gone, and take them out of ``known``; return if some are left.

        A slave leaves that to its master.
        """
        if self.identity.broker_id != MASTER_ID:
            known.clear()
            return False
        gone = sorted(known.keys() - self.topics.topics.keys())
        shared = []
        for topic in gone[:WITHDRAWN_AT_ONCE]:
            if topic in self.topics.topics:  # again, meanwhile
                continue
            was_deleted = topic in self.topics.deleted or not known[topic]
            if await self._withdraw(link, topic) and was_deleted:
                shared.append(topic)
            else:
                del known[topic]
        if shared:
            await self._register(link, known, shared)
        for topic in shared:
            del known[topic]
        return len(gone) > WITHDRAWN_AT_ONCE

    async def _withdraw(self, link: ClientPortLink, topic: str) -> bool:
        """Delete a topic at a name server; return whether it keeps the topic.

        It does if other brokers have the topic, or if it refuses.
        """
        answer = await link.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        brokers = _brokers_in(answer) if answer.code == ResponseCode.SUCCESS else frozenset()
        own = self.identity.broker_name
        if brokers != {own}:
            return own in brokers
        fields = {"topic": topic, "clusterName": self.target.config.cluster}
        answer = await link.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        return answer.code != ResponseCode.SUCCESS

    async def _unregister(self, link: ClientPortLink) -> None:
        identity = self.identity
        if identity.is_of_group and identity.broker_id == MASTER_ID:
            return
        with (
            trio.CancelScope(shield=True, deadline=trio.current_time() + UNREGISTER_TIMEOUT_S),
            contextlib.suppress(HastoreError, OSError),
        ):
            fields = self._registration(link).unregister_fields()
            await link.ask(RequestCode.UNREGISTER_BROKER, fields)

    def _advertised_host(self) -> str | None:
        """Return the host at which the node's group knows it; None if no group says so."""
        directory = self.target.directory
        own = () if directory is None else (node for node in directory.nodes() if node.is_own)
        return next((node.client_address[0] for node in own), None)

    def _registration(
        self, link: ClientPortLink, withdrawn: Sequence[str] = ()
    ) -> BrokerRegistration:
        identity, topics = self.identity, self.topics
        here = self._advertised_host() or bound_address(link.sock)[0]
        address = _reachable(self.target.address, here)
        table = {topic.topic: topic for topic in _SYSTEM_TOPICS}
        table |= {
            topic: TopicConfig(topic=topic, read_queue_nums=0, write_queue_nums=0, perm=0)
            for topic in withdrawn
        }
        default = topics.find(DEFAULT_TOPIC)
        if default is not None:
            table[DEFAULT_TOPIC] = default
        version = topics.version
        if identity.epoch is not None:
            version = attrs.evolve(version, state_version=identity.epoch)
        return BrokerRegistration(
            cluster=self.target.config.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            address=address,
            ha_address=_reachable(identity.ha_address or address, here),
            topics={**table, **topics.topics},
            version=version,
        )


def _brokers_in(answer: RemotingCommand) -> frozenset[str]:
    """Return the names of the brokers that have a topic by its route; none if it is malformed."""
    try:
        rows = liberal_json.loads_object(answer.body, "the route").get("queueDatas")
    except ProtocolError:
        return frozenset()
    rows = rows if isinstance(rows, list) else []
    names = [row.get("brokerName") for row in rows if isinstance(row, dict)]
    return frozenset(name for name in names if isinstance(name, str))


def _reachable(address: Address | None, here: str) -> Address:
    """Return an address for others: a wildcard's with the host by which this node is known."""
    assert address is not None, "only a node with a client port registers"
    return (here, address[1]) if address[0] in WILDCARDS else address

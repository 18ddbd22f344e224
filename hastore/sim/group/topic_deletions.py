"""An operator who deletes topics and makes them again, while nodes fail and masters change.

::

    settled ── an operator, users of two topics, ──▶ settled ── check, delete both, check
               faults of a second plan                          election
                                                                check, make one again, check
                                                                election, check

It comes after everything else of a seed, with its own generator and its own numbered faults, so
nothing before it depends on it.  A deletion is a fault of that plan: the request goes to a node
that believes it is master, which often fails within moments, at times cut off from its slaves.
``topic_oracle`` says what must hold.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.groups.copied_tables import read_consumer_offsets, read_topics
from hastore.client.admin import AdminClient
from hastore.client.remoting_client import open_remoting_client
from hastore.errors import HastoreError
from hastore.sim.cluster import CLIENT_PORT
from hastore.sim.fault_plan import make_fault_plan, with_more_faults
from hastore.sim.group.directory_faults import LOST_STORAGE, OLDER_COPY
from hastore.sim.group.group_faults import PROMOTE
from hastore.sim.group.topic_oracle import TOPICS, Tables, TopicOracle
from hastore.sim.producers import QUEUES, TOPIC
from hastore.sim.put import PutOutcome
from hastore.sim.sockets import HOST
from hastore.sim.violation import ViolationError
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from hastore.client.remoting_client import RemotingClient
    from hastore.sim.cluster import SimNode
    from hastore.sim.fault_plan import FaultPlan, PlannedFault
    from hastore.sim.faults import Faults
    from hastore.sim.group.group_cluster import Agent, GroupCluster
    from hastore.sim.group.group_faults import GroupTarget
    from hastore.sim.group.group_producers import GroupProducers
    from hastore.sim.group.topic_oracle import Topic

NAME: Final = "operator"
OPERATOR: Final = "10.0.6.1"
DELETE_TOPIC: Final = "delete-topic"
GROUP_OF_CONSUMERS: Final = "billing"
_KINDS: Final = (
    DELETE_TOPIC,
    PROMOTE,
    "kill",
    "power",
    "stop",
    "freeze",
    "partition",
    "one-way",
    "reset",
    "slow-disk",
    "fsync",
    "full",
    "wipe",
)
_KINDS_WITH_ETCD: Final = (OLDER_COPY, LOST_STORAGE)
_WEIGHTS: Final = {
    DELETE_TOPIC: (4.0, 8.0, 16.0),
    PROMOTE: (0.0, 1.0, 3.0),
    "wipe": (0.0, 0.5, 2.0),
    "freeze": (0.0, 0.3, 1.0),
    OLDER_COPY: (0.0, 0.5, 2.0),
    LOST_STORAGE: (0.0, 0.5, 1.0),
}
_LASTS_S: Final = (8.0, 25.0)
_HALF: Final = 0.5
_REST_S: Final = 0.3
_BURST_MAX: Final = 3
_SIZE_MAX: Final = 200
_REQUEST_S: Final = 6.0
_ALONE_S: Final = 12.0
_MOMENTS_S: Final = (0.01, 0.1, 1.5)
_MADE_AGAIN: Final = 0.75
_AGAIN_AFTER_S: Final = 2.0
_WITHIN_S: Final = 60.0
_PUTS: Final = 3
_PUT: Final = 0.75
_COMMIT: Final = 0.9


def deletion_plan(choices: random.Random, nodes: int, *, first: int, with_etcd: bool) -> FaultPlan:
    """Choose deletions, one at least, and faults beside them; their numbers begin at ``first``."""
    kinds = _KINDS + _KINDS_WITH_ETCD * with_etcd
    plan = make_fault_plan(choices, kinds, nodes, _WEIGHTS, lasts_s=_LASTS_S)
    plan = with_more_faults(plan, choices, (DELETE_TOPIC,), nodes)
    faults = [attrs.evolve(each, number=first + each.number) for each in plan.faults]
    return attrs.evolve(plan, faults=tuple(faults))


@final
@attrs.define(eq=False)
class TopicDeletions:
    """The operator and the users of the topics; ``choices`` is their own generator."""

    cluster: GroupCluster
    producers: GroupProducers
    oracle: TopicOracle
    plan: FaultPlan
    choices: random.Random

    # -- the fault -------------------------------------------------------------------------------

    def action(
        self, faults: Faults, target: GroupTarget
    ) -> Callable[[PlannedFault, SimNode, random.Random], Awaitable[None]]:
        """Return what deletes a topic, and often lets the node or the group fail meanwhile."""

        async def delete(fault: PlannedFault, _node: SimNode, choices: random.Random) -> None:
            agent = self._choose_master(choices)
            if agent is None:
                await trio.lowlevel.checkpoint()
                return
            topic, node = self.oracle.topics[choices.choice(TOPICS)], agent.sim_node
            faults.begins(fault, NAME, f"deletes topic {topic.name} at {node.name}")
            is_alone = choices.random() < _HALF  # no slave copies the deletion meanwhile
            async with trio.open_nursery() as nursery:
                if is_alone:
                    nursery.start_soon(_isolate, faults, target, node, choices)
                nursery.start_soon(self._delete, topic, agent)
                if is_alone or choices.random() < _HALF:
                    await trio.sleep(choices.uniform(0.0, choices.choice(_MOMENTS_S)))
                    await _disturb(faults, target, node, choices)
            if choices.random() < _MADE_AGAIN:
                await trio.sleep(choices.uniform(0.0, _AGAIN_AFTER_S))
                topic.is_wanted = True
                await self._put(topic.name, choices)

        return delete

    def _choose_master(self, choices: random.Random) -> Agent | None:
        masters = [agent for agent, _ in self.cluster.masters() if agent.sim_node.frozen is None]
        return choices.choice(masters) if masters else None

    # -- the users -------------------------------------------------------------------------------

    async def use(self) -> None:
        """Put messages, commit offsets and make topics, until cancelled."""
        choices = self.choices
        while True:
            await trio.sleep(choices.expovariate(1 / _REST_S))
            topic = self.oracle.topics[choices.choice(TOPICS)]
            kind, queue_id = choices.random(), choices.randrange(QUEUES)
            agent = self._choose_master(choices)
            if agent is None:
                continue
            if kind < _PUT:
                for _ in range(choices.randint(1, _BURST_MAX)):
                    await self._put(topic.name if topic.is_wanted else TOPIC, choices)
            elif not topic.is_wanted:
                continue
            elif kind < _COMMIT:
                await self._commit(topic, queue_id, agent)
            else:
                await self._create(topic, agent)

    async def _put(self, topic: str, choices: random.Random) -> bool:
        put = await self.producers.put(choices.randint(1, _SIZE_MAX), choices, topic)
        return put is not None and put.outcome is PutOutcome.OK

    async def _commit(self, topic: Topic, queue_id: int, agent: Agent) -> bool:
        """Commit the first offset of a queue: as good as any other."""
        fields = {"consumerGroup": GROUP_OF_CONSUMERS, "topic": topic.name}
        fields |= {"queueId": str(queue_id), "commitOffset": "0"}
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        return await self._ask(agent, lambda client: client.invoke(code, fields))

    async def _create(self, topic: Topic, agent: Agent) -> bool:
        return await self._ask(
            agent,
            lambda client: AdminClient(client).create_topic(topic.name, read_queue_nums=QUEUES),
        )

    # -- requests --------------------------------------------------------------------------------

    async def _delete(self, topic: Topic, agent: Agent) -> bool:
        """Ask a node to delete a topic; return whether it has said that it did."""
        topic.is_wanted = False
        topic.deletions += 1
        is_done = await self._ask(
            agent, lambda client: AdminClient(client).delete_topic(topic.name)
        )
        # Without an answer this process may still carry it out, whenever it goes on.
        if is_done or agent.is_over:
            topic.deletions -= 1
            topic.last_deletion_at = trio.current_time()
        self.cluster.trace.add(NAME, f"topic {topic.name}: {'deleted' if is_done else 'no answer'}")
        return is_done

    async def _ask(
        self, agent: Agent, request: Callable[[RemotingClient], Awaitable[object]]
    ) -> bool:
        """Send a request from the operator's host; return whether it succeeded."""
        is_done = False

        async def run() -> None:
            nonlocal is_done
            HOST.set(OPERATOR)
            with trio.move_on_after(_REQUEST_S):
                try:
                    async with open_remoting_client((agent.sim_node.host, CLIENT_PORT)) as client:
                        await request(client)
                        is_done = True
                except* HastoreError:
                    pass

        async with trio.open_nursery() as nursery:  # with a context of its own
            nursery.start_soon(run)
        return is_done

    # -- a group that is quiet -------------------------------------------------------------------

    async def delete_undisturbed(self) -> None:
        """Check what the faults have left, and delete both topics.

        All nodes are up, and follow one master.  Raises ViolationError.
        """
        topics = list(self.oracle.topics.values())
        for topic in topics:
            topic.deletions, topic.last_deletion_at = 0, trio.current_time()
        await self.check()
        for topic in topics:
            await self._until_done("commit", partial(self._commit, topic, 0))
        await self.check()  # with offsets that the slaves have copied
        for topic in topics:
            await self._until_done("deletion", partial(self._delete, topic))
            topic.is_gone = topic.is_emptied = True
        await self.check()

    async def make_one_again(self) -> None:
        """Check that both topics are still deleted, and make one again.  Raises ViolationError."""
        await self.check()
        topic = self.oracle.topics[self.choices.choice(TOPICS)]
        topic.is_gone, topic.is_wanted = False, True
        if self.choices.random() < _HALF:
            await self._until_done("creation", partial(self._create, topic))
        for _ in range(_PUTS):
            await self._until_done("put", lambda _agent: self._put(topic.name, self.choices))
        if self.choices.random() < _HALF:
            topic.is_emptied = False
            await self._until_done("commit", partial(self._commit, topic, 0))
        await self.check()

    async def check(self) -> None:
        """Check that all nodes have and serve the same topics.  Raises ViolationError."""
        lacks: ViolationError | None = None
        with trio.move_on_after(_WITHIN_S):
            while True:
                tables: dict[int, Tables] = {}
                for node_id in self.cluster.config.ids:
                    await self._read(node_id, tables)
                masters = self.cluster.masters()
                lacks = ViolationError("uncopied", f"of all nodes {sorted(tables)} have answered")
                if len(masters) == 1 and len(tables) == len(self.cluster.config.ids):
                    master_id = masters[0][0].node_id
                    self.oracle.check_hidden(tables[master_id])
                    lacks = self.oracle.lacks(tables, master_id)
                    if lacks is None:
                        return
                await trio.sleep(1.0)
        assert lacks is not None, "else it has returned"
        raise lacks

    async def _read(self, node_id: int, tables: dict[int, Tables]) -> None:
        agent = self.cluster.agent(node_id)
        if agent is None:
            return

        async def read(client: RemotingClient) -> None:
            topics = await client.invoke(RequestCode.GET_ALL_TOPIC_CONFIG)
            offsets = await client.invoke(RequestCode.GET_ALL_CONSUMER_OFFSET)
            rows = read_consumer_offsets(offsets.body).rows
            tables[node_id] = Tables(read_topics(topics.body), rows)

        await self._ask(agent, read)

    async def _until_done(self, what: str, do: Callable[[Agent], Awaitable[bool]]) -> None:
        """Repeat a request of an undisturbed master until it succeeds."""
        with trio.move_on_after(_WITHIN_S):
            while True:
                agent = self._choose_master(self.choices)
                if agent is not None and await do(agent):
                    return
                await trio.sleep(1.0)
        detail = f"no {what} of a topic has succeeded within {_WITHIN_S:.0f} s"
        raise ViolationError("deletion", detail)


async def _isolate(
    faults: Faults, target: GroupTarget, node: SimNode, choices: random.Random
) -> None:
    """Cut a master off from the other nodes for a while, but not from the operator."""
    ways = [(node.host, other.host) for other in target.nodes if other is not node]
    ways += [(there, here) for here, there in ways]
    for way in ways:
        target.network.cut(*way)
    await faults.wait(choices, _ALONE_S)
    for way in ways:
        target.network.repair(*way)


async def _disturb(
    faults: Faults, target: GroupTarget, node: SimNode, choices: random.Random
) -> None:
    """Let a master, or its group, fail as it deletes a topic; often another one takes over."""
    if faults.is_over or not node.is_up or node.frozen is not None:
        return
    what = choices.choice((PROMOTE, "freeze", "kill", "power"))
    if what == "power" and not target.may_lose_power(node):
        what = "kill"
    target.trace.add(node.name, f"{what} as it deletes")
    if what == PROMOTE or choices.random() < _HALF:
        target.controller.want_election()
    if what == "freeze":
        node.freeze()
        frozen = node.frozen
        await faults.wait(choices, _ALONE_S)
        node.thaw(frozen)
    elif what != PROMOTE:
        target.crashing(node, lost_power=what == "power")
        if what == "power":
            node.cut_power(choices)
        else:
            node.kill()
        await faults.come_back(node, choices)

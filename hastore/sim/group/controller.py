"""A model of who decides a group's roles: a linearizable state, elections, orders and answers.

::

    state   {revision, epoch, master, members: id -> (uuid, start), is_electing}
                │                                  ▲
       orders   ▼                                  │ changes, by compare-and-swap on the revision
    agents of nodes ──▶ GroupNode       TermCoordinator, one a master's term

Messages take time, overtake each other and are lost; the state changes at one instant.  An election
first voids what the old master may still propose, asks members for their ends (each closes its link
to the old master for good, or gives up being master), and then chooses one of those that answered;
they are the new set.  Everybody else is told until it acts accordingly, some of them late.

A member may stand only if it kept all that it acknowledged: it runs in the start that the state
names, or in a later one of the same directory before which nothing was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.broker.node.master_store import Promotion
from hastore.errors import HastoreError
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.set_proposal import Answer
from hastore.ha.set_rules import nodes_text
from hastore.sim.cluster import HA_PORT
from hastore.sim.group.group_cluster import epoch_of, service_of, set_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from hastore.broker.node.master_store import Term
    from hastore.concurrency.lease import Lease
    from hastore.ha.group_ha_service import GroupHAService
    from hastore.ha.set_proposal import Proposal
    from hastore.sim.group.group_cluster import Agent, GroupCluster

_TICK_S: Final = 0.3
_ELECTION_WAIT_S: Final = 0.6
_SERVES_WITHIN_S: Final = 8.0  # a master that was elected; else another one is
_ASK_AGAIN_S: Final = (2.0, 5.0)  # a proposal without an answer
_REFRESH_S: Final = 0.25
_DELAY_S: Final = (0.001, 0.02)
_LONG_DELAY_S: Final = 5.0
_LATE_S: Final = 20.0
_MISLED_S: Final = 5.0  # after an election
_PATIENCE_S: Final = 10.0  # with an election in which nobody may stand
_HALF: Final = 0.5


@final
@attrs.frozen
class Member:
    """A directory and one of its starts; ``boot`` is the simulator's number of that process."""

    uuid: str
    start: int
    boot: int


@final
@attrs.frozen(kw_only=True)
class GroupState:
    """What the group has agreed on."""

    revision: int = 0
    epoch: int = 0
    master: int | None = None
    members: dict[int, Member] = attrs.field(factory=dict)
    is_electing: bool = False
    by: tuple[int, int] | None = None  # epoch and number of the proposal that made it


@final
@attrs.frozen(kw_only=True)
class Published:
    """What a node says of itself in an election."""

    node_id: int
    member: Member
    kept_since: int
    last_epoch: int
    end: int
    is_unverified: bool  # inside its log


@final
@attrs.define(eq=False)
class Controller:
    """The state, and the tasks that bring the nodes in line with it."""

    cluster: GroupCluster
    choices: Random
    nursery: trio.Nursery
    on_deposed: Callable[[int, GroupState], None]  # before an epoch's state is given up
    on_relieved: Callable[[Agent, Master], Callable[[], None]]
    on_loss: Callable[[int], None]  # a person has elected a node that may lack something
    has_lost: Callable[[int], bool]  # whether a node may lack what it acknowledged
    state: GroupState = attrs.field(factory=GroupState, init=False)
    loss: float = attrs.field(init=False)  # of a message, how likely
    is_calm: bool = attrs.field(default=False, init=False)  # all heals
    elections: int = attrs.field(default=0, init=False)
    # The members of changes that are on their way.
    flying: list[frozenset[int]] = attrs.field(factory=list, init=False)
    _proposed: dict[int, trio.Event] = attrs.field(factory=dict, init=False)
    _wanted: bool = attrs.field(default=False, init=False)
    _published: dict[int, Published] = attrs.field(factory=dict, init=False)
    _elected_at: float = attrs.field(default=0.0, init=False)
    _gone_since: float | None = attrs.field(default=None, init=False)
    _late_until: dict[int, float] = attrs.field(factory=dict, init=False)  # who is told later
    _told_at: dict[int, float] = attrs.field(factory=dict, init=False)
    _coordinators: dict[Agent, TermCoordinator] = attrs.field(factory=dict, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        """Choose how bad the network to the nodes is."""
        self.loss = self.choices.choice((0.0, 0.05, 0.2))

    def want_election(self) -> bool:
        """Elect soon, whatever the master does; return whether that is possible now."""
        if self.state.is_electing or not self.state.epoch:
            return False
        self._wanted = True
        self._wake.set()
        return True

    async def proposed(self, node_id: int) -> None:
        """Wait until a master proposes that a node joins its set."""
        await self._proposed.setdefault(node_id, trio.Event()).wait()

    def is_proposed(self, node_id: int) -> None:
        """Wake those who wait for that."""
        event = self._proposed.pop(node_id, None)
        if event is not None:
            event.set()

    def calm_down(self) -> None:
        """Lose and delay nothing any more."""
        self.is_calm = True
        self._late_until.clear()

    # -- messages --------------------------------------------------------------------------------

    def send(self, act: Callable[[], None]) -> bool:
        """Do something after a delay, or never; return whether it will be done."""
        if not self.is_calm and self.choices.random() < self.loss:
            return False
        delay_s = self.choices.uniform(*_DELAY_S)
        if not self.is_calm and self.choices.random() < 0.1:  # noqa: PLR2004
            delay_s = self.choices.uniform(0.0, _LONG_DELAY_S)
        self.nursery.start_soon(self._later, delay_s, act)
        return True

    async def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        await trio.sleep(delay_s)
        act()

    def order(self, agent: Agent, order: Callable[[], Awaitable[None]]) -> None:
        """Send an order to a node's process."""
        self.send(lambda: agent.post(order))

    # -- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Decide roles until cancelled."""
        await self._begin()
        while True:
            if self._needs_election():
                await self._elect()
            self._assign()
            self._wake = trio.Event()
            with trio.move_on_after(_TICK_S):
                await self._wake.wait()

    async def _begin(self) -> None:
        """Wait until all nodes serve: their empty directories are the group."""
        ids = self.cluster.config.ids
        while not all(self.cluster.agent(node_id) for node_id in ids):  # noqa: ASYNC110 - kills
            await trio.sleep(_TICK_S)
        members = {node_id: member_of(self._agent(node_id)) for node_id in ids}
        self._change(attrs.evolve(self.state, members=members))

    def _agent(self, node_id: int) -> Agent:
        agent = self.cluster.agent(node_id)
        assert agent is not None
        return agent

    def _change(self, state: GroupState) -> None:
        """Change the state: the one instant at which a decision takes effect."""
        self.state = attrs.evolve(state, revision=self.state.revision + 1)

    # -- elections -------------------------------------------------------------------------------

    def _needs_election(self) -> bool:
        state, now = self.state, trio.current_time()
        if state.master is None or self._wanted:
            return True
        agent = self.cluster.agent(state.master)
        if agent is not None and self.is_same_start(agent, state.members.get(state.master)):
            is_late = now > self._elected_at + _SERVES_WITHIN_S
            if agent.epoch == state.epoch or not is_late:
                self._gone_since = None
                return False
        if self._gone_since is None:
            self._gone_since = now + self.choices.uniform(0.0, 3.0)
        return now > self._gone_since

    async def _elect(self) -> None:
        """Elect a master of the next epoch."""
        former = self.state
        self.on_deposed(former.epoch, former)
        self._wanted, self._gone_since = False, None
        self._change(attrs.evolve(former, is_electing=True, by=None))
        self._published = {}
        epoch = former.epoch + 1
        self.elections += 1
        began = trio.current_time()
        self.cluster.trace.add("world", f"election of epoch {epoch}, of {self._named(former)}")
        while True:
            self._ask(epoch, former)
            with trio.move_on_after(_ELECTION_WAIT_S):
                while len(self._candidates()) < len(former.members):
                    self._wake = trio.Event()
                    await self._wake.wait()
            candidates = self._candidates()
            if not candidates and trio.current_time() > began + _PATIENCE_S:
                candidates = self._with_loss()
            if candidates:
                break
        winner = max(candidates, key=lambda each: (each.last_epoch, each.end, -each.node_id))
        if self.choices.random() < 0.4:  # noqa: PLR2004 - any member has what was acknowledged
            winner = self.choices.choice(candidates)
        members = {each.node_id: each.member for each in candidates}
        self._elected_at = trio.current_time()
        self._change(
            GroupState(
                revision=self.state.revision, epoch=epoch, master=winner.node_id, members=members
            )
        )
        self._told_at.clear()
        self._choose_late()
        self._mislead(former)
        self.cluster.trace.add(
            "world", f"epoch {epoch}: node-{winner.node_id} of {self._named(self.state)}"
        )

    def _named(self, state: GroupState) -> str:
        return nodes_text(state.members.keys()) if state.members else "nobody"

    def _ask(self, epoch: int, former: GroupState) -> None:
        """Ask members for their ends; some cannot be reached, the old master often."""
        for node_id in former.members:
            agent = self.cluster.agent(node_id)
            if agent is None or node_id in self._published:
                continue
            missed = 0.6 if node_id == former.master else 0.1
            if self.is_calm or self.choices.random() >= missed:
                self.order(agent, self._publishing(agent, epoch))

    def _publishing(self, agent: Agent, epoch: int) -> Callable[[], Awaitable[None]]:
        async def publish() -> None:
            if agent.newest_epoch > epoch:
                return
            agent.newest_epoch = epoch
            if not await self._obey(agent, lambda: agent.node.step_down(f"election of {epoch}")):
                return
            slave, identity = agent.node.role_node, agent.node.identity
            if agent.newest_epoch > epoch or isinstance(slave, Master):
                return
            framing = slave.ha_client.framing
            assert identity is not None
            assert isinstance(framing, AutoswitchFraming), "a slave of a group"
            published = Published(
                node_id=agent.node_id,
                member=member_of(agent),
                kept_since=identity.current.kept_since,
                last_epoch=framing.history.last_epoch or 0,
                end=slave.max_offset,
                is_unverified=identity.current.unverified is not None,
            )
            self.send(lambda: self._take(epoch, published))

        return publish

    def _take(self, epoch: int, published: Published) -> None:
        if self.state.is_electing and self.state.epoch + 1 == epoch:
            self._published[published.node_id] = published
            self._wake.set()

    def _candidates(self) -> list[Published]:
        """Return those of the members that have answered and may stand."""
        return [
            each
            for node_id, each in sorted(self._published.items())
            if self.may_stand(self.state.members.get(node_id), each)
        ]

    def may_stand(self, member: Member | None, published: Published) -> bool:
        """Whether a node has all that it acknowledged as this member of the set."""
        if member is None or published.member.uuid != member.uuid or published.is_unverified:
            return False
        is_sync = self.cluster.config.is_sync(published.node_id)
        return is_sync or published.kept_since <= member.start

    def _with_loss(self) -> list[Published]:
        """Return the member that a person would choose, if none is left that kept all."""
        members = self.state.members
        is_everybody = len(self._published) == len(members)
        if not is_everybody or not all(self.has_lost(node_id) for node_id in members):
            return []
        best = max(self._published.values(), key=lambda each: (each.last_epoch, each.end))
        self.on_loss(best.node_id)
        return [best]

    def _choose_late(self) -> None:
        """Choose who learns of the new master late."""
        self._late_until.clear()
        if self.is_calm:
            return
        now = trio.current_time()
        for node_id in self.cluster.config.ids:
            if node_id != self.state.master and self.choices.random() < 0.4:  # noqa: PLR2004
                self._late_until[node_id] = now + self.choices.uniform(0.0, _LATE_S)

    def _mislead(self, former: GroupState) -> None:
        """Let somebody who has not heard of the election name the former master to nodes.

        Such a node is told later who the new one is.
        """
        choices = self.choices
        if self.is_calm or not former.epoch or choices.random() < _HALF:
            return
        masters = {former.master, self.state.master}
        others = [each for each in self.cluster.config.ids if each not in masters]
        for node_id in others:
            if choices.random() < _HALF:
                self._mislead_node(node_id, self._address(former))

    def _mislead_node(self, node_id: int, address: tuple[str, int]) -> None:
        choices, epoch = self.choices, self.state.epoch

        def tell() -> None:
            agent = self.cluster.agent(node_id)
            if agent is None or self.is_calm or self.state.epoch != epoch:
                return

            async def follow() -> None:
                await self._obey(agent, lambda: agent.node.follow(address))

            now = trio.current_time()
            self._late_until[node_id] = now + choices.uniform(0.0, _MISLED_S)
            agent.post(follow)

        most_s = choices.choice((1.0, _MISLED_S))
        self.nursery.start_soon(self._later, choices.uniform(0.0, most_s), tell)

    def why_not_deciding(self, _agent: Agent, _epoch: int) -> None:
        """Return None: no lease says until when a master decides."""

    # -- roles -----------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Tell each node what it is to be, if it is not that yet."""
        state, now = self.state, trio.current_time()
        if state.master is None or state.is_electing:
            return
        for node_id in self.cluster.config.ids:
            agent = self.cluster.agent(node_id)
            if agent is None or now < self._late_until.get(node_id, 0.0):
                continue
            if now < self._told_at.get(node_id, 0.0) + 1.0 or self._is_as_assigned(agent, state):
                continue
            self._told_at[node_id] = now
            if node_id == state.master:
                self.order(agent, self._promoting(agent, state))
            else:
                self.order(agent, self._following(agent, state))

    def _is_as_assigned(self, agent: Agent, state: GroupState) -> bool:
        role_node = agent.node.role_node
        if agent.node_id == state.master:
            return agent.epoch == state.epoch
        return not isinstance(role_node, Master) and role_node.config.master == self._address(state)

    def _address(self, state: GroupState) -> tuple[str, int]:
        assert state.master is not None
        return self.cluster.node(state.master).host, HA_PORT

    def is_same_start(self, agent: Agent, member: Member | None) -> bool:
        """Whether a node runs in the start of its process that was elected."""
        return member_of(agent) == member

    def _promoting(self, agent: Agent, state: GroupState) -> Callable[[], Awaitable[None]]:
        member = state.members[agent.node_id]

        async def promote() -> None:
            if agent.newest_epoch > state.epoch or not self.is_same_start(agent, member):
                return
            agent.newest_epoch = state.epoch
            promotion = Promotion(epoch=state.epoch, members=frozenset(state.members))
            await self._obey(agent, lambda: agent.node.become_master(promotion))

        return promote

    def _following(self, agent: Agent, state: GroupState) -> Callable[[], Awaitable[None]]:
        # A person names the master without its epoch, perhaps too late.
        epoch = state.epoch if self.choices.random() < _HALF else None
        address = self._address(state)
        is_checked = self.choices.random() < 0.7  # noqa: PLR2004

        async def follow() -> None:
            if is_checked and agent.newest_epoch > state.epoch:
                return
            agent.newest_epoch = max(agent.newest_epoch, state.epoch)
            await self._obey(agent, lambda: agent.node.follow(address, epoch))

        return follow

    async def _obey(self, agent: Agent, change: Callable[[], Awaitable[object]]) -> bool:
        """Change a node's role; return whether it did."""
        master = agent.serving_master
        undo = None if master is None else self.on_relieved(agent, master)
        try:
            await change()
        except HastoreError as error:
            if undo is not None and agent.serving_master is master:
                undo()
            self.cluster.trace.add(agent.sim_node.name, f"refuses: {error}", is_detail=True)
            return False
        return True

    # -- a master's changes of its set -----------------------------------------------------------

    def coordinator_for(self, agent: Agent, term: Term) -> TermCoordinator:
        """Return the coordinator of a master that begins its term."""
        # A promotion that comes late knows an older revision.
        is_current = self.state.epoch == term.entry.epoch and not self.state.is_electing
        revision = self.state.revision if is_current else -1
        coordinator = TermCoordinator(self, agent, term.entry.epoch, revision)
        self._coordinators[agent] = coordinator
        return coordinator

    def term_began(self, agent: Agent, master: Master) -> None:
        """Let a new master's coordinator work."""
        coordinator = self._coordinators[agent]
        agent.post(lambda: coordinator.keep_fresh(master))

    def apply(
        self, epoch: int, node_id: int, revision: int, by: tuple[int, int], change: GroupState
    ) -> bool:
        """Change the members by compare-and-swap; return whether the state is the wanted one."""
        state = self.state
        if state.by == by:
            return True
        if state.is_electing or (state.epoch, state.master) != (epoch, node_id):
            return False
        if state.revision != revision:
            return False
        self._change(attrs.evolve(state, members=change.members, by=by))
        return True

    @property
    def registered(self) -> frozenset[int]:
        """The ids of the group: those that are configured."""
        return frozenset(self.cluster.config.ids)

    def remove(self, node_id: int) -> None:
        """Take a node out of the set, before its directory is emptied."""
        state = self.state
        members = {each: member for each, member in state.members.items() if each != node_id}
        if node_id in state.members:
            self._change(attrs.evolve(state, members=members, by=None))


@final
@attrs.define(eq=False)
class TermCoordinator:
    """The coordinator of one master's term: asks until there is an answer.

    Only the state says what has become of a proposal: applied, or void because the revision moved.
    """

    controller: Controller
    agent: Agent
    epoch: int
    revision: int  # the newest of this term that the master knows
    lease: Lease | None = None  # the model has none
    _is_watched: bool = attrs.field(default=False, init=False)
    _refreshes: int = attrs.field(default=0, init=False)

    def propose(self, proposal: Proposal, /) -> Answer | None:
        """Ask for a change; the answer comes later, or not at all."""
        members: dict[int, Member] = {}
        known = self.controller.state.members
        for node_id in proposal.members:
            member = self._member(node_id) if node_id in proposal.joined else known.get(node_id)
            if member is None:
                return Answer.VOIDED
            members[node_id] = member
        for node_id in proposal.joined:
            self.controller.is_proposed(node_id)
        self.agent.post(lambda: self._ask(proposal, members))
        return None

    def _member(self, node_id: int) -> Member | None:
        """Return the directory and start of a node whose link to this master is of that start."""
        master, agent = self.agent.master, self.controller.cluster.agent(node_id)
        if master is None or agent is None:
            return None
        node = set_of(master).acks.get(node_id)
        if node is None or node.connection_id is None or node.ack_offset is None:
            return None
        connection = master.ha_service.connections.get(node.connection_id)
        if connection is None or connection.connected_time <= agent.began_at:
            return None
        return member_of(agent)

    async def _ask(self, proposal: Proposal, members: dict[int, Member]) -> None:
        """Ask again and again until the proposal is answered, or the term is over."""
        revision, by = self.revision, (self.epoch, proposal.number)
        while self._is_pending(proposal):
            self._send(revision, by, members, proposal)
            await trio.sleep(self.controller.choices.uniform(*_ASK_AGAIN_S))

    def _is_pending(self, proposal: Proposal) -> bool:
        master = self.agent.open_master
        if master is None or epoch_of(master) != self.epoch:
            return False
        return set_of(master).proposal is proposal

    def _send(
        self,
        revision: int,
        by: tuple[int, int],
        members: dict[int, Member],
        proposal: Proposal | None,
    ) -> None:
        controller = self.controller
        change = GroupState(members=members)

        flying = frozenset(members)
        controller.flying.append(flying)

        def arrives() -> None:
            controller.flying.remove(flying)
            is_done = controller.apply(self.epoch, self.agent.node_id, revision, by, change)
            state = controller.state
            controller.send(
                lambda: self.agent.post(lambda: self._answered(proposal, state, is_done=is_done))
            )

        if not controller.send(arrives):
            controller.flying.remove(flying)

    async def _answered(
        self, proposal: Proposal | None, state: GroupState, *, is_done: bool
    ) -> None:
        """Take an answer, which says what the state is now."""
        master = self.agent.open_master
        if master is None or epoch_of(master) != self.epoch:
            return
        service = service_of(master)
        if (state.epoch, state.master) != (self.epoch, self.agent.node_id) or state.is_electing:
            return  # an earlier copy may have been applied before the term was over: still pending
        if state.revision < self.revision:
            return  # overtaken by a newer one
        self.revision = state.revision
        members, group = frozenset(state.members), service.sync_state_set
        if proposal is not None and group.proposal is proposal:
            if is_done and members == proposal.members:
                await service.answer(proposal, Answer.ACCEPTED)
                return
            if members == group.accepted:
                await service.answer(proposal, Answer.VOIDED)
                return
        if group.proposal in (None, proposal) and members != group.accepted:
            self._moved(service, members)

    def _moved(self, service: GroupHAService, members: frozenset[int]) -> None:
        group = service.sync_state_set
        if group.own_id in members:
            group.moved(members, frozenset(), trio.current_time())
            service.set_changed()

    async def keep_fresh(self, master: Master) -> None:
        """Write later starts of members into the state; learn of changes that others made."""
        controller = self.controller
        while self.agent.open_master is master:
            await trio.sleep(_REFRESH_S)
            state = controller.state
            if (state.epoch, state.master) != (self.epoch, self.agent.node_id):
                continue
            fresh = dict(state.members)
            for node_id in state.members:
                if node_id != self.agent.node_id:
                    member = self._member(node_id)
                    if member is not None and self._has_all(master, node_id):
                        fresh[node_id] = member
            self._refreshes -= 1  # below all numbers of proposals
            by = (self.epoch, self._refreshes)
            if fresh != state.members:
                self._send(self.revision, by, fresh, None)
            elif self.revision != state.revision or set_of(master).accepted != state.members.keys():
                seen = state
                controller.send(
                    lambda: self.agent.post(lambda: self._answered(None, seen, is_done=False))  # noqa: B023
                )

    def _has_all(self, master: Master, node_id: int) -> bool:
        group = set_of(master)
        node = group.acks.get(node_id)
        return (
            node is not None
            and node.ack_offset is not None
            and node.ack_offset >= group.confirm_offset
        )


def member_of(agent: Agent) -> Member:
    """Return the directory and start that a node runs with."""
    identity = agent.node.identity
    assert identity is not None
    return Member(identity.current.uuid, identity.current.starts, agent.boot.number)

"""One run of one seed with a replica group: faults and promotions, then none.

::

    boot ── safety: producers, faults, promotions ──┬── liveness: one master, equal logs ──┬── end
                                                    └ within LIVENESS_S, without a restart ┘

Full disks and deletions of topics follow, each with a generator of its own, and liveness again.

The phases, the trace and the result are those of a classic run (``simulation``).
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.errors import (
    BelowConfirmMarkError,
    LogDamagedError,
    WrongNodeError,
)
from hastore.sim.consumer import CONSUMER
from hastore.sim.excuses import may_end
from hastore.sim.fault_plan import make_fault_plan, with_more_faults
from hastore.sim.faults import Faults
from hastore.sim.group import directory_copy, group_double, group_observer, topic_deletions
from hastore.sim.group.controller import Controller
from hastore.sim.group.directory_faults import DIRECTORY_KINDS, EARLY_KINDS, DirectoryFaults
from hastore.sim.group.etcd_director import EtcdDirector
from hastore.sim.group.etcd_faults import ETCD_KINDS, ETCD_WEIGHTS, EtcdFaults
from hastore.sim.group.etcd_outage import EtcdOutage
from hastore.sim.group.full_disks import FullDisks
from hastore.sim.group.group_cluster import GroupCluster, GroupConfig, set_of
from hastore.sim.group.group_consumer import GroupConsumer
from hastore.sim.group.group_double import GroupDouble
from hastore.sim.group.group_faults import (
    GAVE_UP,
    GROUP_KINDS,
    GROUP_WEIGHTS,
    REJOIN,
    WRONG_CLOCK,
    GroupFaults,
    GroupTarget,
)
from hastore.sim.group.group_observer import GroupObserver
from hastore.sim.group.group_oracle import GroupOracle, consistent_point
from hastore.sim.group.group_producers import GroupProducers
from hastore.sim.group.topic_deletions import DELETE_TOPIC, TopicDeletions, deletion_plan
from hastore.sim.group.topic_oracle import TopicOracle
from hastore.sim.guards import leak_guards
from hastore.sim.network import Network
from hastore.sim.seams import run_by_seed
from hastore.sim.simulation import SimResult
from hastore.sim.sockets import HOST, SimResolver, SimSocketFactory
from hastore.sim.steps import Steps, broken_off
from hastore.sim.trace import Trace, node_log
from hastore.sim.violation import UnpromisedError, ViolationError
from hastore.status import FlushDiskType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hastore.broker.node.slave import Slave
    from hastore.config import InSyncReplicas
    from hastore.sim.cluster import SimNode
    from hastore.sim.fault_plan import FaultPlan
    from hastore.sim.group.etcd_outage import Outage
    from hastore.sim.group.group_cluster import Agent

LIVENESS_S: Final = 180.0
_HALF: Final = 0.5
_DOUBLE_SHARE: Final = 0.3  # of all seeds
_DELETIONS_SHARE: Final = 0.6  # of those with client ports
_NAMES: Final = {
    CONSUMER: "consumer",
    group_observer.HOST: group_observer.NAME,
    group_double.HOST: group_double.NAME,
    directory_copy.HOST: directory_copy.NAME,
    topic_deletions.OPERATOR: topic_deletions.NAME,
}
_FIRST_CLEAN_S: Final = 1.0
_HEARTBEAT_S: Final = 6.0  # slaves have the last message's confirmation by then


def simulate_group(
    seed: int,
    *,
    keeps_trace: bool = False,
    left_out: Collection[int] = (),
    with_etcd: bool = False,
    outage: Outage | None = None,
    in_process: bool = False,
) -> SimResult:
    """Run one seed without the faults whose numbers are ``left_out``; blocks.

    ``with_etcd``: the nodes decide roles by a model of etcd; with an ``outage`` that is down for
    long.  ``in_process`` as in ``simulate``.  An error that ends the run, of the product or of the
    simulator, is a violation ``crash``.
    """
    simulation = GroupSimulation(
        seed,
        keeps_trace=keeps_trace,
        left_out=left_out,
        with_etcd=with_etcd,
        outage=outage,
        in_process=in_process,
    )
    try:
        with leak_guards(), node_log(simulation.logged):
            run_by_seed(seed, simulation.run)
    except Exception as error:  # noqa: BLE001 - any error: the seed reproduces it
        simulation.broke_off(error)
    return simulation.result()


@final
class GroupSimulation:
    """One run: its parts and its phases."""

    def __init__(
        self,
        seed: int,
        *,
        keeps_trace: bool = False,
        left_out: Collection[int] = (),
        with_etcd: bool = False,
        outage: Outage | None = None,
        in_process: bool = False,
    ) -> None:
        assert with_etcd or outage is None, "an outage is one of etcd"
        self.seed = seed
        self.left_out = left_out
        self.with_etcd = with_etcd
        self.wished_outage = outage
        self.outage: EtcdOutage | None = None
        choices = random.Random(f"{'etcd' if with_etcd else 'group'} {seed}")
        self.config = choose_group_config(choices)
        kinds, weights = GROUP_KINDS, dict(GROUP_WEIGHTS)
        if with_etcd:
            kinds = (*(kind for kind in kinds if kind != REJOIN), *ETCD_KINDS)
            weights |= ETCD_WEIGHTS
            # Members promise over their client ports.
            listens = self.config.listens or choices.random() < _HALF
            listens = listens or outage is not None
            self.config = attrs.evolve(self.config, listens=listens)
        self.plan = make_fault_plan(choices, kinds, len(self.config.ids), weights)
        nodes = len(self.config.ids)
        if with_etcd:
            own = random.Random(f"directory {seed}")
            self.plan = with_more_faults(self.plan, own, DIRECTORY_KINDS, nodes, EARLY_KINDS)
        own = random.Random(f"clock {seed}")
        self.plan = with_more_faults(self.plan, own, (WRONG_CLOCK,), nodes)
        self.choices = random.Random(choices.getrandbits(64))  # producers and restarts
        self.decisions = random.Random(choices.getrandbits(64))  # the controller's
        self.readers = random.Random(choices.getrandbits(64))  # the consumer's and the observer's
        world = random.Random(choices.getrandbits(64))
        self.trace = Trace(keeps=keeps_trace)
        self.network = Network(world)
        self.cluster = GroupCluster(self.config, self.network, world, self.trace)
        self.oracle = GroupOracle(self.cluster)
        self.producers = GroupProducers(self.cluster, self.oracle, self.choices, self._violated)
        if in_process:
            self.producers.put_wait.in_process = random.Random(f"in process {seed}")
        self.observer: GroupObserver | None = None
        if self.config.has_observer:
            self.observer = GroupObserver(self.cluster, self.oracle, self.readers)
        # From a generator of its own, so that all else in a seed's plan is as without it.
        # A coordinator refuses a second directory with a node's id as it registers.
        own = random.Random(f"double {seed}")
        self.double: GroupDouble | None = None
        if not with_etcd and own.random() < _DOUBLE_SHARE:
            self.double = GroupDouble(self.cluster, own)
        self.deletions = self._choose_deletions()
        self.violation: ViolationError | None = None
        self.virtual_s = 0.0
        self._steps = Steps(self._check_step, self._violated)
        self.faults: Faults | None = None
        self._names = _NAMES | {node.host: node.name for node in self.cluster.nodes}
        self._past_faults: DirectoryFaults | None = None
        self._broken = trio.Event()

    def _choose_deletions(self) -> TopicDeletions | None:
        """Choose whether topics are deleted after all else, by a generator of its own."""
        own = random.Random(f"deletions {self.seed}")
        may_be_asked = self.config.listens and self.wished_outage is None
        if not may_be_asked or own.random() >= _DELETIONS_SHARE:
            return None
        nodes, first = len(self.config.ids), len(self.plan.faults)
        plan = deletion_plan(own, nodes, first=first, with_etcd=self.with_etcd)
        topics = TopicOracle(self.cluster, self.oracle)
        return TopicDeletions(self.cluster, self.producers, topics, plan, own)

    def result(self) -> SimResult:
        """Return the outcome."""
        return SimResult(
            seed=self.seed,
            trace_hash=self.trace.hash,
            virtual_s=self.virtual_s,
            puts=len(self.oracle.puts),
            acknowledged=self.oracle.acknowledged,
            served=self.oracle.served,
            boots=sum(node.boots for node in self.cluster.nodes),
            fired=() if self.faults is None else tuple(self.faults.fired),
            plan=self._whole_plan(),
            violation=self.violation,
            entries=tuple(self.trace.entries),
            config=describe_group(self.config),
        )

    def _whole_plan(self) -> FaultPlan:
        late = () if self.deletions is None else self.deletions.plan.faults
        return attrs.evolve(self.plan, faults=(*self.plan.faults, *late))

    def logged(self, level: int, text: str) -> None:
        """Add what a node logs to the trace."""
        who = self._names.get(HOST.get(""), "world")
        self.trace.add(who, f"logs {text}", is_detail=level < logging.ERROR)

    async def run(self) -> None:
        """Run the seed, as the main task of a trio run in virtual time."""
        trio.socket.set_custom_socket_factory(SimSocketFactory(self.network))
        trio.socket.set_custom_hostname_resolver(SimResolver())
        self.trace.add("world", f"seed {self.seed}: {describe_group(self.config)}")
        async with trio.open_nursery() as nursery:
            controller = self._make_controller(nursery)
            target = GroupTarget(self.cluster, self.oracle, controller)
            self.faults = Faults(target, nursery, self.plan, self.choices, self.left_out)
            self.faults.more = GroupFaults(self.faults, target).actions()
            if isinstance(controller, EtcdDirector):
                put = self.producers.put
                self.faults.more |= EtcdFaults(self.faults, controller, put).actions()
                self._past_faults = DirectoryFaults(self.faults, target, controller, put)
                self.faults.more |= self._past_faults.actions()
            for node in self.cluster.nodes:
                node.on_ended = self._node_ended
                node.start(nursery)
            with trio.CancelScope() as scope:
                try:
                    async with trio.open_nursery() as phases:
                        phases.start_soon(self._watch, scope)
                        phases.start_soon(controller.run)
                        if self.config.listens:
                            offsets, own = self.oracle.offsets, self.readers
                            consumer = GroupConsumer(self.cluster, offsets, own, self._violated)
                            phases.start_soon(consumer.run)
                        if self.observer is not None:
                            phases.start_soon(self.observer.run, nursery)
                        trio.lowlevel.add_instrument(self._steps)
                        if self.outage is not None:
                            await self._begin_outage(self.outage, controller)
                        await self._safety(nursery)
                        if self.outage is not None:
                            self._check(self.outage.end)
                        controller.calm_down()
                        await self._liveness(controller, 1 if self.config.listens else 0)
                        await self._fill_disks(controller)
                        await self._delete_topics(controller, target, nursery)
                        if self.violation is None:
                            self._check(self.oracle.check_end)
                        scope.cancel()
                except Exception as error:  # noqa: BLE001 - recorded before nodes end with it
                    self._violated(broken_off(error))
            self._steps.end()
            others = [each.node for each in (self.observer, self.double) if each is not None]
            if self._past_faults is not None:
                others += [copy.node for copy in self._past_faults.copies]
            for node in (*self.cluster.nodes, *others):
                if node.is_up:
                    node.kill()
            nursery.cancel_scope.cancel()
        self.virtual_s = trio.current_time()

    def _make_controller(self, nursery: trio.Nursery) -> Controller | EtcdDirector:
        oracle = self.oracle
        if self.with_etcd:
            director = EtcdDirector(
                self.cluster,
                self.decisions,
                on_deposed=oracle.deposed,
                on_loss=oracle.accepted_loss,
                has_lost=oracle.has_lost,
                is_all_lost=oracle.is_all_lost,
                is_foreign=lambda node_id: oracle.logs[node_id].foreign is not None,
                is_edited=lambda node_id: oracle.logs[node_id].hole is not None,
                failsafe=self.wished_outage is None or self.wished_outage.failsafe,
            )
            own = random.Random(f"etcd version {self.seed}")
            director.model.state.deletes_while_full = own.random() < _HALF
            if self.wished_outage is not None:
                own = random.Random(f"outage {self.seed}")
                self.outage = EtcdOutage(self.wished_outage, director, self.producers, oracle, own)
            oracle.controller = director
            oracle.is_unnoticed = lambda: director.is_unnoticed
            self.cluster.coordinators = self.cluster.role_services = director
            self.cluster.watcher = self
            return director
        controller = Controller(
            self.cluster,
            self.decisions,
            nursery,
            on_deposed=oracle.deposed,
            on_relieved=oracle.relieved,
            on_loss=oracle.accepted_loss,
            has_lost=oracle.has_lost,
        )
        oracle.controller = controller
        self.cluster.coordinators = controller
        self.cluster.watcher = self
        return controller

    def term_began(self, agent: Agent, master: Master) -> None:
        """Check a new master, and let its coordinator work."""
        self._check(lambda: self.oracle.term_began(agent, master))
        self.oracle.controller.term_began(agent, master)

    def role_began(self, agent: Agent, role_node: Master | Slave) -> None:
        """Trace a role, and let it look for expired files soon."""
        role_node.expiry.clean_commit_log_service.first_run_s = _FIRST_CLEAN_S
        self.oracle.role_began(agent, role_node)

    async def _watch(self, scope: trio.CancelScope) -> None:
        await self._broken.wait()
        scope.cancel()

    def broke_off(self, error: Exception) -> None:
        """Record the error that ended the run."""
        self.virtual_s = self._steps.now
        if self.violation is None:
            self.violation = broken_off(error)
            self.trace.add("oracle", f"VIOLATION {self.violation}", at=self.virtual_s)

    def _violated(self, error: ViolationError) -> None:
        if self._broken.is_set():
            return
        if isinstance(error, UnpromisedError):
            self.trace.add("oracle", f"ends the run: {error}")
        else:
            self.violation = error
            self.trace.add("oracle", f"VIOLATION {error}")
        self._broken.set()

    def _check_step(self) -> None:
        try:
            self.oracle.check_step()
            if self.observer is not None:
                self.observer.check_step()
            if self.double is not None:
                self.double.check_step()
            if self._past_faults is not None:
                self._past_faults.check_step()
                self._past_faults.director.check_step()
        except ViolationError as error:
            self._violated(error)

    def _check(self, rule: Callable[[], None]) -> None:
        try:
            rule()
        except ViolationError as error:
            self._violated(error)

    def _node_ended(self, node: SimNode, error: BaseException | None) -> None:
        """Check that a fault explains why a node ended by itself, and start it again."""
        assert self.faults is not None
        assert node.last_boot is not None
        disk = node.last_boot.disk
        if disk.syncs_failed and not self.config.is_sync(self.cluster.id_of(node)):
            self.oracle.lost_bytes(self.cluster.id_of(node))
        is_removed = isinstance(error, WrongNodeError) and self._may_be_refused(node)
        log = self.oracle.logs[self.cluster.id_of(node)]
        is_damaged = isinstance(error, LogDamagedError) and log.hole is not None
        if isinstance(error, ViolationError):
            self._violated(error)
        elif not (is_removed or is_damaged or may_end(node, error)):
            reason = "ended without error" if error is None else f"{type(error).__name__}: {error}"
            ended = ViolationError("ended", f"{node.name}: {reason}")
            ended.__cause__ = error
            self._violated(ended)
        self.faults.restart(node, error)

    def _may_be_refused(self, node: SimNode) -> bool:
        """Whether a fault explains that etcd does not know a node's directory, or knows another.

        If what registered another directory came late, remove the node as its error says.
        """
        director, node_id = self.oracle.controller, self.cluster.id_of(node)
        if not isinstance(director, EtcdDirector):
            return False
        if not director.was_registered_late(node_id):
            return node_id in director.may_be_refused
        self.trace.add("world", f"somebody removes {node.name} once more")
        director.remove(node_id)
        return True

    # -- phases ------------------------------------------------------------------------------------

    async def _begin_outage(
        self, outage: EtcdOutage, controller: Controller | EtcdDirector
    ) -> None:
        """Let etcd be down, with nothing else wrong at first."""
        try:
            await outage.begin(self.plan, lambda: self._is_settled(controller, dispatched=False))
        except ViolationError as error:
            self._violated(error)

    async def _safety(self, nodes: trio.Nursery) -> None:
        assert self.faults is not None
        with trio.move_on_after(self.plan.safety_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.faults.run)
                if self.double is not None:
                    nursery.start_soon(self.double.run, nodes)
                if self.outage is not None:
                    nursery.start_soon(self._end_outage, self.outage)
                for _ in range(self.choices.randint(1, 3)):
                    own = random.Random(self.choices.getrandbits(64))
                    nursery.start_soon(self.producers.produce, own)
        self.faults.end()
        if self.double is not None:
            self.double.stop()

    async def _end_outage(self, outage: EtcdOutage) -> None:
        try:
            await outage.end_in_time()
        except ViolationError as error:
            self._violated(error)

    async def _fill_disks(self, controller: Controller | EtcdDirector) -> None:
        """Fill disks while nothing else is wrong; then all is well again.

        Not after a violation, nor where etcd was down for long, which is another story.
        """
        if self.violation is not None or self.outage is not None:
            return
        own = random.Random(f"full {self.seed}")
        full_disks = FullDisks(self.cluster, controller, self.producers, own)
        try:
            await full_disks.run(hands_over=self.with_etcd)
        except ViolationError as error:
            self._violated(error)
        else:
            await self._liveness(controller, 0)

    async def _delete_topics(
        self, controller: Controller | EtcdDirector, target: GroupTarget, nodes: trio.Nursery
    ) -> None:
        """Let an operator delete topics while nodes fail; check them once all is well again."""
        deletions = self.deletions
        if self.violation is not None or deletions is None:
            return
        assert self.faults is not None
        self.trace.add("world", "an operator deletes topics")
        fired, own = self.faults.fired, random.Random(deletions.choices.getrandbits(64))
        self.faults = faults = Faults(
            target, nodes, deletions.plan, own, self.left_out, fired=fired
        )
        faults.more = GroupFaults(faults, target).actions()
        if self._past_faults is not None:
            self._past_faults = attrs.evolve(self._past_faults, faults=faults)
            faults.more |= self._past_faults.actions()
        faults.more[DELETE_TOPIC] = deletions.action(faults, target)
        with trio.move_on_after(deletions.plan.safety_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(faults.run)
                nursery.start_soon(deletions.use)
        faults.end()
        await self._liveness(controller, 0)
        for check in (deletions.delete_undisturbed, deletions.make_one_again, deletions.check):
            if self._broken.is_set():
                return
            try:
                await check()
            except ViolationError as error:
                self._violated(error)
            else:
                await self._liveness(controller, 1)

    async def _liveness(self, controller: Controller | EtcdDirector, elections: int) -> None:
        """Wait until there is one master, all logs are equal, and a put is PUT_OK.

        Then once more after each of so many elections: by then every slave has copied the offsets
        of a consumer.
        """
        with trio.move_on_after(LIVENESS_S):
            while True:
                await trio.sleep(1.0)
                self._check(self._check_refusals)
                if not self._is_settled(controller, dispatched=False):
                    continue
                put = await self.producers.put(10, self.choices)
                if put is not None and put.status is not None and put.status.value == "PUT_OK":
                    await trio.sleep(_HEARTBEAT_S)
                    is_settled = self._is_settled(controller, dispatched=True)
                    if is_settled and self._reader_lacks() is None:
                        if elections:
                            elections -= 1
                            controller.want_election()
                            continue
                        self.trace.add("world", "all nodes have the same log")
                        return
        lacks = None
        if self._is_settled(controller, dispatched=True):
            lacks = self._reader_lacks()
        self._violated(lacks or ViolationError("liveness", self._why_not(controller)))

    def _reader_lacks(self) -> ViolationError | None:
        """Return what consumers, slaves' tables or the observer lack, though all logs are equal."""
        config, oracle = self.config, self.oracle
        master = self.cluster.masters()[0][1]
        found = []
        if config.has_delays:
            found.append(("undelivered", oracle.delays.lacks(oracle.logs[1].data)))
        if config.listens:
            found.append(("uncopied", oracle.offsets.lacks(master)))
        if self.observer is not None:
            found.append(("unobserved", self.observer.lacks(master.max_offset)))
        for rule, detail in found:
            if detail is not None:
                return ViolationError(rule, detail)
        return None

    def _is_settled(self, controller: Controller | EtcdDirector, *, dispatched: bool) -> bool:
        masters, logs = self.cluster.masters(), self.oracle.logs
        state = controller.state
        if len(masters) != 1 or masters[0][0].node_id != state.master:
            return False
        master = masters[0][1]
        if set(state.members) != set(self.config.ids):
            return False
        return all(
            self.cluster.agent(node_id) is not None
            and log.end == master.max_offset
            and (log.dispatched == log.end or not dispatched)
            for node_id, log in logs.items()
        )

    def _check_refusals(self) -> None:
        """Check that no slave has given up, but with another group's log or no epoch in common.

        Or where its log was repaired, or a person has elected a node that lacked what all members
        had acknowledged.  Then a person copies it again.  Raises ViolationError.
        """
        for node_id in self.config.ids:
            agent = self.cluster.agent(node_id)
            if agent is None or isinstance(agent.node.role_node, Master):
                continue
            client = agent.node.role_node.ha_client
            if client.state.value not in GAVE_UP:
                continue
            detail = f"node-{node_id} is {client.state.value}: {client.reason}"
            log = self.oracle.logs[node_id]
            is_edited = log.foreign is not None or log.hole is not None
            is_other_log = is_edited or not self._has_common_epoch(node_id)
            is_alarm = isinstance(client.error, BelowConfirmMarkError)
            is_diverged = client.state.value == "diverged"
            if not ((is_diverged and is_other_log) or (is_alarm and self.oracle.losses > 0)):
                raise ViolationError("refusal", detail)
            self.trace.add("world", detail)
            self._copy_again(node_id)

    def _has_common_epoch(self, node_id: int) -> bool:
        own = self.oracle.logs[node_id]
        for agent, _ in self.cluster.masters():
            masters = self.oracle.logs[agent.node_id]
            if consistent_point(own.epochs(), own.end, masters.epochs(), masters.end) is not None:
                return True
        return False

    def _copy_again(self, node_id: int) -> None:
        assert self.faults is not None
        node = self.cluster.node(node_id)
        self.oracle.controller.remove(node_id)
        node.kill()
        node.wipe()
        self.oracle.lost_disk(node_id)
        self.faults.restart(node, None)

    def _why_not(self, controller: Controller | EtcdDirector) -> str:
        parts = [f"epoch {controller.state.epoch}, set {sorted(controller.state.members)}"]
        for node_id in self.config.ids:
            agent = self.cluster.agent(node_id)
            if agent is None:
                parts.append(f"node-{node_id} does not serve")
                continue
            role_node, log = agent.node.role_node, self.oracle.logs[node_id]
            if isinstance(role_node, Master):
                group = set_of(role_node)
                why_not = {each: group.why_not(each) for each in group.known_ids()}
                what = f"master, not in its set {why_not}"
            else:
                client = role_node.ha_client
                what = f"slave, {client.state.value}: {client.reason}"
            if isinstance(controller, EtcdDirector):
                what += f", {controller.roles[node_id].action}"
            parts.append(f"node-{node_id} {what} at {log.end}, dispatched {log.dispatched}")
        return f"{LIVENESS_S:.0f} s after the last fault: {', '.join(parts)}"


def choose_group_config(choices: random.Random) -> GroupConfig:
    """Choose the settings of a group."""
    sync, later = FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH
    count = choices.choice((2, 3, 3, 3, 3, 5))
    flushes = choices.choice(((sync,), (later,), (later,), (sync, later)))
    levels: tuple[InSyncReplicas, ...] = ("all", "all", "all", "all", 2, count)
    wanted = choices.choice(levels)
    return GroupConfig(
        flushes=tuple(choices.choice(flushes) for _ in range(count)),
        in_sync_replicas=wanted,
        min_in_sync_replicas=choices.choice((1, None, 2)),
        mapped_file_size=choices.choice((8, 16, 64)) * 1024,
        ha_transfer_batch_size=choices.choice((512, 4_096, 32_768)),
        listens=choices.choice((False, False, False, True)),
        has_observer=choices.choice((False, False, False, True)),
        has_delays=choices.choice((False, False, True)),
    )


def describe_group(config: GroupConfig) -> str:
    """Return the settings in a line."""
    flushes = ", ".join(flush.value.removesuffix("_FLUSH") for flush in config.flushes)
    return (
        f"{len(config.flushes)} nodes ({flushes}), in_sync_replicas {config.in_sync_replicas}, at"
        f" least {config.min_in_sync_replicas or 'the default'}, files of {config.mapped_file_size}"
        f"{', a consumer' * config.listens}{', an observer' * config.has_observer}"
        f"{', delays' * config.has_delays}"
    )

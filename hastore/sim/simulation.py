"""One run of one seed: faults for a while (safety), then none (liveness), checked all along.

::

boot ── safety: producers, faults, checks ──┬── liveness: all heals, all catch up ──┬── the end
                                            └ within LIVENESS_S, without a restart ─┘

Each part has a generator from the seed: cluster and plan of faults, network and disks, producers.
So a run without some of its faults has the others at the same times, and puts the same messages.
"""

from __future__ import annotations

import logging
import random
import re
import traceback
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import LogDamagedError
from hastore.sim.client_producer import PRODUCER, ClientProducer
from hastore.sim.cluster import ClusterConfig, SimCluster
from hastore.sim.consumer import CONSUMER, SimConsumer
from hastore.sim.fault_plan import FaultPlan, make_fault_plan
from hastore.sim.faults import KINDS, ClassicTarget, Faults
from hastore.sim.guards import leak_guards
from hastore.sim.network import Network
from hastore.sim.oracle import Oracle
from hastore.sim.producers import Producers
from hastore.sim.seams import run_by_seed
from hastore.sim.sockets import HOST, SimResolver, SimSocketFactory
from hastore.sim.steps import Steps, broken_off, first_cause
from hastore.sim.trace import Trace, TraceEntry, node_log
from hastore.sim.violation import ViolationError
from hastore.status import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from hastore.sim.cluster import SimNode

LIVENESS_S: Final = 120.0
_ROT_EVERY_S: Final = 0.5
_PUT: Final = re.compile(r"put (\d+)\b")


@attrs.frozen(kw_only=True)
class SimResult:
    """The outcome of a seed; ``fired`` are the numbers of the faults that had an effect."""

    seed: int
    trace_hash: str
    virtual_s: float
    puts: int
    acknowledged: int
    served: int
    boots: int
    fired: tuple[int, ...]
    plan: FaultPlan
    violation: ViolationError | None
    entries: tuple[TraceEntry, ...]
    config: str  # the cluster's settings in a line

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return self.violation is None

    @property
    def traceback(self) -> str | None:
        """Return the traceback of the error behind the violation, None without one."""
        if self.violation is None or self.violation.__cause__ is None:
            return None
        cause = first_cause(self.violation.__cause__)
        return "".join(traceback.format_exception(cause, chain=False))

    @property
    def faults(self) -> int:
        """Return how many faults had an effect."""
        return len(self.fired)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the trace as text."""
        return tuple(map(str, self.entries))

    def timeline(self, *, everything: bool = False) -> Sequence[TraceEntry]:
        """Return the entries that help to find out what went wrong, or ``everything``.

        Faults, boots and ends, the put concerned and its answer, the violation, and the errors that
        nodes log.
        """
        if everything:
            return self.entries
        put = None if self.violation is None else self.violation.put
        return [entry for entry in self.entries if not entry.is_detail or _is_about(entry, put)]


def simulate(
    seed: int,
    *,
    keeps_trace: bool = False,
    left_out: Collection[int] = (),
    in_process: bool = False,
) -> SimResult:
    """Run one seed without the faults whose numbers are ``left_out``; blocks.

    ``in_process``: producers are tasks of the master's process, and may give up a wait.  An error
    that ends the run, of the product or of the simulator, is a violation ``crash``.
    """
    simulation = Simulation(seed, keeps_trace=keeps_trace, left_out=left_out, in_process=in_process)
    try:
        with leak_guards(), node_log(simulation.logged):
            run_by_seed(seed, simulation.run)
    except Exception as error:  # noqa: BLE001 - any error: the seed reproduces it
        simulation.broke_off(error)
    return simulation.result()


@final
class Simulation:
    """One run: its parts and its phases."""

    def __init__(
        self,
        seed: int,
        *,
        keeps_trace: bool = False,
        left_out: Collection[int] = (),
        in_process: bool = False,
    ) -> None:
        self.seed = seed
        self.left_out = left_out
        choices = random.Random(seed)
        self.config = choose_config(choices)
        self.plan = make_fault_plan(choices, KINDS, self.config.slaves + 1)
        self.choices = random.Random(choices.getrandbits(64))  # producers and restarts
        world = random.Random(choices.getrandbits(64))
        self.trace = Trace(keeps=keeps_trace)
        self.network = Network(world)
        self.cluster = SimCluster(self.config, self.network, world, self.trace)
        self.oracle = Oracle(self.cluster)
        self.producers = Producers(self.cluster, self.oracle, self.choices, self._violated)
        if in_process:
            self.producers.put_wait.in_process = random.Random(f"in process {seed}")
        self.violation: ViolationError | None = None
        self.virtual_s = 0.0
        self._steps = Steps(lambda: self._check(self.oracle.check_step), self._violated)
        self.faults: Faults | None = None
        self._names = {node.host: node.name for node in self.cluster.nodes}
        self._names |= {CONSUMER: "consumer", PRODUCER: "producer"}
        self._broken = trio.Event()

    def result(self) -> SimResult:
        """Return the outcome."""
        return SimResult(
            seed=self.seed,
            trace_hash=self.trace.hash,
            virtual_s=self.virtual_s,
            puts=len(self.oracle.puts),
            acknowledged=self.oracle.acknowledged,
            served=self.oracle.reads.count,
            boots=sum(node.boots for node in self.cluster.nodes),
            fired=() if self.faults is None else tuple(self.faults.fired),
            plan=self.plan,
            violation=self.violation,
            entries=tuple(self.trace.entries),
            config=describe(self.config),
        )

    def logged(self, level: int, text: str) -> None:
        """Add what a node logs to the trace."""
        who = self._names.get(HOST.get(""), "world")
        self.trace.add(who, f"logs {text}", is_detail=level < logging.ERROR)
        self._check(lambda: self.oracle.heard(who, text))

    async def run(self) -> None:
        """Run the seed, as the main task of a trio run in virtual time."""
        trio.socket.set_custom_socket_factory(SimSocketFactory(self.network))
        trio.socket.set_custom_hostname_resolver(SimResolver())
        self.trace.add("world", f"seed {self.seed}: {describe(self.config)}")
        async with trio.open_nursery() as nursery:
            target = ClassicTarget(self.cluster, self.oracle)
            self.faults = Faults(target, nursery, self.plan, self.choices, self.left_out)
            for node in self.cluster.nodes:
                node.on_built = self.oracle.reads.watch
                node.on_ended = self._node_ended
                node.start(nursery)
            with trio.CancelScope() as scope:
                try:
                    async with trio.open_nursery() as phases:
                        phases.start_soon(self._watch, scope)
                        trio.lowlevel.add_instrument(self._steps)
                        await self._phases()
                        scope.cancel()
                except Exception as error:  # noqa: BLE001 - recorded before nodes end with it
                    self._violated(broken_off(error))
            self._steps.end()
            for node in self.cluster.nodes:
                if node.is_up:
                    node.kill()
            nursery.cancel_scope.cancel()
        self.virtual_s = trio.current_time()

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
        if self.violation is None:
            self.violation = error
            self.trace.add("oracle", f"VIOLATION {error}")
        self._broken.set()

    def _check(self, rule: Callable[[], None]) -> None:
        try:
            rule()
        except ViolationError as error:
            self._violated(error)

    # -- nodes -------------------------------------------------------------------------------------

    def _node_ended(self, node: SimNode, error: BaseException | None) -> None:
        assert self.faults is not None
        self._check(lambda: self.oracle.node_ended(node, error))
        if isinstance(error, LogDamagedError) and not node.is_master:
            self._replace_disk(node)
        self.faults.restart(node, error)

    def _replace_disk(self, node: SimNode) -> None:
        """Replace a slave's disk, as an operator does for a slave that was refused."""
        node.wipe()
        self.oracle.rotten.pop(node.name, None)

    def _check_rot(self) -> None:
        """Replace slaves that serve although a bit of their log flipped.

        Raises ViolationError if the start should have found that damage.
        """
        assert self.faults is not None
        for node in self.cluster.slaves:
            if self.oracle.serves_with_flipped_bit(node):
                node.kill()
                self._replace_disk(node)
                self.faults.restart(node, None)

    # -- phases ------------------------------------------------------------------------------------

    async def _phases(self) -> None:
        async with trio.open_nursery() as readers:
            if self.config.listens:
                readers.start_soon(SimConsumer(self.oracle, self._violated).run)
            await self._safety()
            await self._liveness()
            readers.cancel_scope.cancel()
        if self.violation is None:
            self._check(self.oracle.check_end)

    async def _safety(self) -> None:
        assert self.faults is not None
        with trio.move_on_after(self.plan.safety_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.faults.run)
                nursery.start_soon(self._check_rot_now_and_then)
                for _ in range(self.choices.randint(1, 3)):
                    own = random.Random(self.choices.getrandbits(64))
                    nursery.start_soon(self.producers.produce, own)
                if self.config.listens:
                    own = random.Random(self.choices.getrandbits(64))
                    nursery.start_soon(ClientProducer(self.oracle, own).run)
        self.faults.end()

    async def _check_rot_now_and_then(self) -> None:
        while True:
            await trio.sleep(_ROT_EVERY_S)
            self._check(self._check_rot)

    # -- liveness ----------------------------------------------------------------------------------

    async def _liveness(self) -> None:
        """Wait until all slaves have caught up and a put is PUT_OK; an operator helps."""
        with trio.move_on_after(LIVENESS_S):
            while True:
                await trio.sleep(1.0)
                self._check(self._check_rot)
                self._check(self._operate)
                if self._has_caught_up():
                    put = await self.producers.put(10)
                    if put is not None and put.status is not None and put.status.value == "PUT_OK":
                        await trio.sleep(1.0)
                        if self._has_caught_up() and self.oracle.unserved() is None:
                            self.trace.add("world", "all slaves have caught up")
                            return
        unserved = self.oracle.unserved() if self._has_caught_up() else None
        if unserved is not None:
            self._violated(ViolationError("unserved", f"{unserved} was never served to a consumer"))
        self._violated(ViolationError("liveness", self._why_not()))

    def _operate(self) -> None:
        """Replace the disks of slaves that have diverged or failed, as an operator does."""
        for node in self.cluster.slaves:
            slave = self.cluster.serving_slave(node)
            if slave is not None and slave.ha_client.state.value in {"diverged", "failed"}:
                self.oracle.check_refusal(node)
                self.trace.add(node.name, f"is {slave.ha_client.state.value}")
                node.kill()
                self._replace_disk(node)
                assert self.faults is not None
                self.faults.restart(node, None)

    def _has_caught_up(self) -> bool:
        master = self.cluster.serving_master
        if master is None:
            return False
        slaves = [self.cluster.serving_slave(node) for node in self.cluster.slaves]
        return all(slave is not None and slave.max_offset == master.max_offset for slave in slaves)

    def _why_not(self) -> str:
        parts = []
        for node in self.cluster.nodes:
            serving = node.node
            if serving is None:
                parts.append(f"{node.name} does not serve")
            elif node.is_master:
                parts.append(f"{node.name} at {serving.max_offset}")
            else:
                parts.append(f"{node.name} {serving.ha_client.state.value} at {serving.max_offset}")
        return f"{LIVENESS_S:.0f} s after the last fault: {', '.join(parts)}"


def choose_config(choices: random.Random) -> ClusterConfig:
    """Choose the settings of a cluster."""
    sync, later = FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH
    role = choices.choice((BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER))
    master_flush = choices.choice((sync, sync, later))
    slave_flush = choices.choice((sync, sync, later))
    return ClusterConfig(
        role=role,
        master_flush=master_flush,
        slave_flush=slave_flush,
        slaves=choices.choice((1, 1, 2, 3)),
        mapped_file_size=choices.choice((8, 16, 64)) * 1024,
        transient_store_pool=master_flush is later and choices.random() < 0.3,  # noqa: PLR2004
        ha_transfer_batch_size=choices.choice((512, 4_096, 32_768)),
        listens=choices.choice((False, False, True)),
    )


def describe(config: ClusterConfig) -> str:
    """Return the settings in a line."""
    pool = " pool" if config.transient_store_pool else ""
    consumer = ", a consumer" if config.listens else ""
    return (
        f"{config.role.value} {config.master_flush.value}{pool}, {config.slaves} slave(s)"
        f" {config.slave_flush.value}, files of {config.mapped_file_size}{consumer}"
    )


def _is_about(entry: TraceEntry, put: int | None) -> bool:
    match = _PUT.match(entry.what)
    return match is not None and put is not None and int(match[1]) == put

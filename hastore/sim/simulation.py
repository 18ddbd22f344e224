"""One run by one seed: faults for a while (safety), then none (liveness), and what must hold.

::

boot ── safety: producers, faults, checks ──┬── liveness: all heals, all catch up ──┬── the end
                                            └ within LIVENESS_S, without a restart ─┘
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.message import Message
from hastore.sim.cluster import Cluster, ClusterConfig
from hastore.sim.faults import Faults
from hastore.sim.guards import leak_guards
from hastore.sim.host import Trace
from hastore.sim.network import Network
from hastore.sim.oracle import Oracle, Put, ViolationError
from hastore.sim.seams import run_by_seed
from hastore.sim.sockets import SimResolver, SimSocketFactory
from hastore.status import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.sim.cluster import SimNode

LIVENESS_S: Final = 120.0
_STEP_S: Final = 0.5
_PUT_WAIT_S: Final = 30.0


@attrs.frozen(kw_only=True)
class SimResult:
    """What became of a seed."""

    seed: int
    trace_hash: str
    virtual_s: float
    puts: int
    acknowledged: int
    faults: int
    boots: int
    violation: ViolationError | None
    lines: tuple[str, ...]
    config: ClusterConfig

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return self.violation is None


def simulate(seed: int, *, keeps_trace: bool = False) -> SimResult:
    """Run one seed; blocks."""
    simulation = Simulation(seed, keeps_trace=keeps_trace)
    with leak_guards():
        run_by_seed(seed, simulation.run)
    return simulation.result()


@final
class Simulation:
    """One run."""

    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.seed = seed
        self.choices = random.Random(seed)
        self.trace = Trace(keeps=keeps_trace)
        self.config = choose_config(self.choices)
        self.network = Network(self.choices)
        self.cluster = Cluster(self.config, self.network, self.choices, self.trace)
        self.oracle = Oracle(self.cluster)
        self.violation: ViolationError | None = None
        self.virtual_s = 0.0
        self.faults: Faults | None = None
        self._broken = trio.Event()

    def result(self) -> SimResult:
        """Say what became of it."""
        return SimResult(
            seed=self.seed,
            trace_hash=self.trace.hash,
            virtual_s=self.virtual_s,
            puts=len(self.oracle.puts),
            acknowledged=self.oracle.acknowledged,
            faults=0 if self.faults is None else self.faults.count,
            boots=sum(node.boots for node in self.cluster.nodes),
            violation=self.violation,
            lines=tuple(self.trace.lines),
            config=self.config,
        )

    async def run(self) -> None:
        """Run it: the main task of a trio run in virtual time."""
        trio.socket.set_custom_socket_factory(SimSocketFactory(self.network))
        trio.socket.set_custom_hostname_resolver(SimResolver())
        self.trace.add("world", f"seed {self.seed}: {describe(self.config)}")
        async with trio.open_nursery() as nursery:
            self.faults = Faults(self.cluster, self.oracle, nursery, self.choices)
            for node in self.cluster.nodes:
                node.on_ended = self._node_ended
                node.start(nursery)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as phases:
                    phases.start_soon(self._watch, scope)
                    await self._phases()
                    scope.cancel()
            for node in self.cluster.nodes:
                if node.is_up:
                    node.kill()
            nursery.cancel_scope.cancel()
        self.virtual_s = trio.current_time()
        if self.violation is not None:
            self.trace.add("oracle", f"VIOLATION {self.violation}")

    async def _watch(self, scope: trio.CancelScope) -> None:
        await self._broken.wait()
        scope.cancel()

    def _violated(self, error: ViolationError) -> None:
        if self.violation is None:
            self.violation = error
        self._broken.set()

    def _node_ended(self, node: SimNode, error: BaseException | None) -> None:
        assert self.faults is not None
        if node.is_master:
            self.oracle.master_ended(error)
        self.faults.restart(node, error)

    async def _phases(self) -> None:
        assert self.faults is not None
        safety_s = self.choices.uniform(20.0, 60.0)
        mean_s = self.choices.choice((0.5, 2.0, 5.0))
        with trio.move_on_after(safety_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.faults.run, mean_s)
                nursery.start_soon(self._check_steps)
                for _ in range(self.choices.randint(1, 3)):
                    nursery.start_soon(self._produce)
        self.faults.end()
        await self._liveness()
        try:
            if self.violation is None:
                self.oracle.check_end()
        except ViolationError as error:
            self._violated(error)

    async def _check_steps(self) -> None:
        while True:
            await trio.sleep(_STEP_S)
            self._check_step()

    def _check_step(self) -> None:
        self._look(self.oracle.check_step)

    def _look(self, rule: Callable[[], None]) -> None:
        try:
            rule()
        except ViolationError as error:
            self._violated(error)

    # -- producers ---------------------------------------------------------------------------------

    async def _produce(self) -> None:
        """Put bursts of messages, one after the other or all at once, and rest between them."""
        rest_s = self.choices.choice((0.3, 1.0, 3.0))
        burst_max = self.choices.choice((1, 1, 5, 20))
        size_max = self.choices.choice((10, 300, 2_000))
        is_parallel = self.choices.random() < 0.5  # noqa: PLR2004 - a coin
        while True:
            await trio.sleep(self.choices.expovariate(1 / rest_s))
            burst = range(self.choices.randint(1, burst_max))
            sizes = [self.choices.randint(1, size_max) for _ in burst]
            if is_parallel:
                async with trio.open_nursery() as nursery:
                    for size in sizes:
                        nursery.start_soon(self._put, size)
            else:
                for size in sizes:
                    await self._put(size)

    async def _put(self, size: int) -> Put | None:
        """Put a message and wait for what comes of it; None where there is no master."""
        master, boot = self.cluster.serving_master, self.cluster.master.boot
        if master is None or boot is None:
            return None
        number = len(self.oracle.puts)
        put = Put(number, b"put-%d-" % number)
        self.oracle.puts.append(put)
        message = Message(
            "orders",
            bytes([65 + number % 26]) * size,
            queue_id=number % 4,
            properties={"KEYS": put.key.decode(), "UNIQ_KEY": f"{number:032X}"},
        )
        put.submitted_at = trio.current_time()
        self.oracle.waiting[number] = put
        done = trio.Event()

        def answered(request: GroupCommitRequest) -> None:
            if not boot.is_over:
                self._answered(put, request)
            done.set()

        request = master.submit(message)
        # One that waits for the next file is appended later, when there may be a slave.
        is_appended = request.append_result is not None
        put.had_slave = not is_appended or bool(master.ha_service.connections)
        if request.status is not None:
            answered(request)
        else:
            request.on_done = answered
            with trio.move_on_after(_PUT_WAIT_S):
                await done.wait()
        self.oracle.waiting.pop(number, None)
        return put

    def _answered(self, put: Put, request: GroupCommitRequest) -> None:
        result = request.result
        assert result is not None
        self.trace.add("producer", f"put {put.number} {result.status.value} {result.physic_offset}")
        try:
            self.oracle.answered(put, result)
        except ViolationError as error:
            self._violated(error)

    # -- liveness ----------------------------------------------------------------------------------

    async def _liveness(self) -> None:
        """Wait until everybody has caught up and a put is as its mode asks; an operator helps."""
        with trio.move_on_after(LIVENESS_S):
            while True:
                await trio.sleep(1.0)
                self._check_step()
                self._look(self._operate)
                if self._has_caught_up():
                    put = await self._put(10)
                    if put is not None and put.status is not None and put.status.value == "PUT_OK":
                        await trio.sleep(1.0)
                        if self._has_caught_up():
                            self.trace.add("world", "everybody has caught up")
                            return
        self._violated(ViolationError("liveness", self._why_not()))

    def _operate(self) -> None:
        """Do what a person does: give a slave that may not follow a new disk."""
        for node in self.cluster.slaves:
            slave = self.cluster.serving_slave(node)
            if slave is not None and slave.ha_client.state.value in {"diverged", "failed"}:
                self.oracle.check_refusal(node)
                self.trace.add(node.name, f"is {slave.ha_client.state.value}")
                node.kill()
                node.wipe()
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
    """Choose a cluster."""
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
    )


def describe(config: ClusterConfig) -> str:
    """Say in a line what was chosen."""
    pool = " pool" if config.transient_store_pool else ""
    return (
        f"{config.role.value} {config.master_flush.value}{pool}, {config.slaves} slave(s)"
        f" {config.slave_flush.value}, files of {config.mapped_file_size}"
    )

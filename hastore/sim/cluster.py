"""A master and its slaves: real nodes on simulated hosts, which boot, crash and restart.

What a host runs is the cluster's choice (``NodeCluster.main_of``).

A crash takes effect before the node's code sees it: its sockets die, the disk of the next boot is
copied, and only then are its tasks cancelled.  So ``finally`` blocks run without effect.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs
import trio

from hastore.broker.node.master import run_master
from hastore.broker.node.slave import run_slave
from hastore.config import HAConfig, MasterConfig, SlaveConfig, StoreConfig
from hastore.errors import HastoreError
from hastore.sim.disk import SimDisk
from hastore.sim.host import SimOffload, SimWallClock, sim_env
from hastore.sim.seams import Freeze
from hastore.sim.sockets import HOST

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from hastore.broker.node.master import Master
    from hastore.broker.node.slave import Slave
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace
    from hastore.status import BrokerRole, FlushDiskType

DATA_DIR: Final = "/d"
MASTER: Final = "10.0.0.1"
HA_PORT: Final = 10_912
CLIENT_PORT: Final = 10_911
PROCESS_ID: Final = 1_000  # plus the number of the start
_LOST_DISKS_MAX: Final = 4


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """The settings of a cluster, chosen by the seed."""

    role: BrokerRole
    master_flush: FlushDiskType
    slave_flush: FlushDiskType
    slaves: int
    mapped_file_size: int
    slave_timeout_ms: int = 3_000
    transient_store_pool: bool = False
    ha_transfer_batch_size: int = 32 * 1024
    listens: bool = False  # the master has a client port

    def store(self, flush: FlushDiskType, *, is_master: bool) -> StoreConfig:
        """Return a node's store settings."""
        return StoreConfig(
            data_dir=DATA_DIR,
            mapped_file_size=self.mapped_file_size,
            flush_disk_type=flush,
            transient_store_pool_enable=self.transient_store_pool and is_master,
            transient_store_pool_size=2,
            mapped_file_size_consume_queue=2_000,
            file_reserved_time_h=100_000,
            max_hash_slot_num=64,
            max_index_num=512,
        )

    def ha(self) -> HAConfig:
        """Return every node's replication settings."""
        return HAConfig(
            slave_timeout_ms=self.slave_timeout_ms,
            ha_transfer_batch_size=self.ha_transfer_batch_size,
        )


@final
@attrs.define(eq=False)
class Boot:
    """One run of one node's process."""

    number: int
    disk: SimDisk
    offload: SimOffload
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    node: Any = None  # Master or Slave, once it serves
    is_over: bool = False  # crashed or ended: what its tasks still do has no effect
    error: BaseException | None = None
    is_asked_to_stop: bool = False


class NodeCluster(Protocol):
    """What a host needs of the cluster of which it is one."""

    @property
    def network(self) -> Network:
        """The network of all hosts."""

    @property
    def choices(self) -> random.Random:
        """The seed's generator for the hosts."""

    @property
    def trace(self) -> Trace:
        """The trace of the run."""

    def main_of(self, node: SimNode) -> Callable[..., Awaitable[object]]:
        """Return what a boot of ``node`` runs: called with its Env, it announces what serves."""


@final
@attrs.define(eq=False, repr=False)
class SimNode:
    """A host with one node on it."""

    cluster: NodeCluster
    name: str
    host: str
    is_master: bool
    disk: SimDisk
    wall_clock: SimWallClock
    boots: int = 0
    boot: Boot | None = None
    last_boot: Boot | None = None  # the one that ended last
    slow_disk_s: float = 0.0
    # Copies from before a wipe, a flipped bit or a power cut: what the node may have reported.
    lost_disks: deque[SimDisk] = attrs.field(factory=lambda: deque(maxlen=_LOST_DISKS_MAX))
    frozen: Freeze | None = None  # while its process is stopped (SIGSTOP)
    went_on_at: float = 0.0  # when it last went on after SIGSTOP
    silent_from: float = 0.0  # when it was last stopped, or lost power
    slow_until: float = -1.0  # when its disk was last slow
    _goes_on: trio.Event = attrs.field(factory=trio.Event)
    on_built: Callable[[Master], None] = lambda _master: None  # called before a master runs
    on_ended: Callable[[SimNode, BaseException | None], None] | None = None

    # -- state -------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a process runs."""
        return self.boot is not None

    def silent_since(self, peer: str) -> float | None:
        """Return since when a peer gets nothing from it, not even FIN or RST; None if it does."""
        network = self.cluster.network
        if self.frozen is not None or self.host not in network.up:
            return self.silent_from
        return network.cut_since(self.host, peer)

    @property
    def node(self) -> Any:
        """Return the Master or Slave while it serves, else None."""
        return None if self.boot is None else self.boot.node

    @property
    def live_disk(self) -> SimDisk:
        """Return the disk as it is now."""
        return self.disk if self.boot is None else self.boot.disk

    # -- life --------------------------------------------------------------------------------------

    def start(self, nursery: trio.Nursery) -> None:
        """Boot the node in ``nursery``."""
        assert self.boot is None, f"{self.name} runs"
        self.boots += 1
        offload = SimOffload(self.cluster.choices, self.slow_disk_s)
        self.boot = Boot(self.boots, self.disk, offload)
        self.cluster.network.boot(self.host, self.boots)
        self.cluster.trace.add(self.name, f"boot {self.boots}")
        nursery.start_soon(self._run, self.boot)

    async def _run(self, boot: Boot) -> None:
        HOST.set(self.host)
        env = sim_env(boot.disk, self.wall_clock, boot.offload, PROCESS_ID + boot.number, self.name)
        try:
            with boot.scope:
                async with trio.open_nursery() as nursery:
                    boot.node = await nursery.start(self.cluster.main_of(self), env)
                    if not boot.is_over:
                        self.cluster.trace.add(self.name, f"serves at {boot.node.max_offset}")
        except BaseException as error:
            if boot.is_over:
                if not _is_of_the_crash(error):
                    raise
            else:
                boot.error = _as_itself(error)
                if isinstance(boot.error, trio.Cancelled):
                    raise  # the run ends, not the node
        if not boot.is_over:
            self._over(boot, boot.disk.after_kill(), silently=False)
            reason = type(boot.error).__name__ if boot.error is not None else "stopped"
            self.cluster.trace.add(self.name, f"ended: {reason}")
            if self.on_ended is not None:
                self.on_ended(self, boot.error)

    def freeze(self) -> None:
        """Stop its process (SIGSTOP): no task runs; kernel and disk keep what they have."""
        assert self.boot is not None
        assert self.frozen is None, f"{self.name} is stopped already"
        self.frozen = Freeze(lambda task: task.context.get(HOST) == self.host)
        self.frozen.begin()
        self.silent_from = trio.current_time()
        self._goes_on = trio.Event()
        self.cluster.trace.add(self.name, "is stopped (SIGSTOP)")

    def thaw(self, only: Freeze | None = None) -> None:
        """Let a stopped process go on (SIGCONT); its deadlines have passed meanwhile.

        Do nothing if it is not stopped, or if ``only`` is not the freeze that stopped it.
        """
        if self.frozen is None or only not in (None, self.frozen):
            return
        self.frozen.end()
        self.frozen = None
        self.went_on_at = trio.current_time()
        self._goes_on.set()
        self.cluster.trace.add(self.name, "goes on (SIGCONT)")

    async def wait_while_frozen(self) -> None:
        """Wait until the process is not stopped."""
        while self.frozen is not None:
            await self._goes_on.wait()

    def kill(self) -> None:
        """Kill the process (-9): the page cache stays, the kernel closes the sockets."""
        assert self.boot is not None
        self._end(self.boot.disk.after_kill(), "killed", silently=False)

    def cut_power(self, choices: random.Random | None = None) -> None:
        """Cut the power: dirty sectors are kept or lost one by one; peers are not notified."""
        assert self.boot is not None
        choices = choices or self.cluster.choices
        share = choices.choice((0.0, 0.5, 0.9))
        self.lost_disks.append(self.boot.disk.after_kill())
        disk = self.boot.disk.after_power_cut(lambda: choices.random() < share)
        self._end(disk, "power cut", silently=True)
        self.silent_from = trio.current_time()

    def lose_storage(self, choices: random.Random) -> None:
        """Let its file system go down and come back without a reboot: a process dies with it."""
        share = choices.choice((0.0, 0.5, 0.9))
        self.lost_disks.append(self.live_disk.after_kill())
        disk = self.live_disk.after_storage_was_lost(lambda: choices.random() < share)
        if self.boot is not None:
            self._end(disk, "its file system is lost, and mounted again", silently=False)
        self.disk = disk

    def replace_disk(self, disk: SimDisk) -> None:
        """Put another disk into its machine."""
        assert self.boot is None, f"{self.name} runs"
        self.lost_disks.append(self.disk)
        disk.now_ms = self.wall_clock.now_ms
        self.disk = disk.on_the_machine_of(self.disk)

    def _end(self, disk: SimDisk, what: str, *, silently: bool) -> None:
        boot = self.boot
        assert boot is not None
        self._over(boot, disk, silently=silently)
        self.cluster.trace.add(self.name, what)
        boot.scope.cancel()
        self.thaw()  # so that its tasks can end, without effect

    def _over(self, boot: Boot, disk: SimDisk, *, silently: bool) -> None:
        boot.is_over = True
        self.boot, self.last_boot = None, boot
        self.disk = disk
        self.cluster.network.shut_down(self.host, silently=silently)

    def set_slow_disk(self, extra_s: float) -> None:
        """Slow down each blocking disk operation by ``extra_s``."""
        if self.slow_disk_s:
            self.slow_until = trio.current_time()
        self.slow_disk_s = extra_s
        if self.boot is not None:
            self.boot.offload.slow_s = extra_s

    def wipe(self) -> None:
        """Replace its disk by an empty one, as an operator does for a slave that was refused."""
        assert self.boot is None, f"{self.name} runs"
        self.replace_disk(SimDisk(self.wall_clock.now_ms))
        self.cluster.trace.add(self.name, "wiped")


@final
@attrs.define(eq=False)
class SimCluster:
    """One master and its slaves."""

    config: ClusterConfig
    network: Network
    choices: random.Random
    trace: Trace
    nodes: list[SimNode] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Set up the hosts."""
        for index in range(self.config.slaves + 1):
            clock = SimWallClock()
            name = "master" if not index else f"slave-{index}"
            host = f"10.0.0.{index + 1}"
            disk = SimDisk(clock.now_ms)
            self.nodes.append(SimNode(self, name, host, not index, disk, clock))

    def main_of(self, node: SimNode) -> Callable[..., Awaitable[object]]:
        """Return ``run_master`` or ``run_slave`` with the node's configuration."""
        config = self.config
        if node.is_master:
            master = MasterConfig(
                store=config.store(config.master_flush, is_master=True),
                role=config.role,
                listen=(node.host, CLIENT_PORT) if config.listens else None,
                ha_listen=(node.host, HA_PORT),
                ha=config.ha(),
            )
            return functools.partial(run_master, master, on_built=node.on_built)
        slave = SlaveConfig(
            store=config.store(config.slave_flush, is_master=False),
            master=(MASTER, HA_PORT),
            master_client=(MASTER, CLIENT_PORT) if config.listens else None,
            listen=None,
            ha=config.ha(),
        )
        return functools.partial(run_slave, slave)

    @property
    def master(self) -> SimNode:
        """Return the master."""
        return self.nodes[0]

    @property
    def slaves(self) -> list[SimNode]:
        """Return the slaves."""
        return self.nodes[1:]

    @property
    def serving_master(self) -> Master | None:
        """Return the master's node if it serves."""
        node: Master | None = self.master.node
        return node

    def serving_slave(self, node: SimNode) -> Slave | None:
        """Return a slave's node if it serves."""
        slave: Slave | None = node.node
        return slave


def _as_itself(error: BaseException) -> BaseException:
    """Return the most telling error of a group: the first that is not hastore's, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_as_itself(one) for one in error.exceptions]
    foreign = [leaf for leaf in leaves if not isinstance(leaf, (HastoreError, trio.Cancelled))]
    return (foreign or leaves)[0]


def _is_of_the_crash(error: BaseException) -> bool:
    """Whether an error of a crashed node is only a consequence of the crash."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_the_crash(one) for one in error.exceptions)
    return isinstance(error, (HastoreError, OSError, trio.Cancelled, trio.ClosedResourceError))

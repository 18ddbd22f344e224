"""A node of the simulated world, the real master or slave on a host in memory, and its link.

A crash takes effect before the node's code sees it: its sockets die, the disk of the next start is
copied, and only then are its tasks cancelled.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final

import attrs
import trio

from hastore.broker.node.group_node import run_group_node
from hastore.broker.node.master import run_master
from hastore.broker.node.slave import run_slave
from hastore.cluster.cluster_node import run_cluster_node
from hastore.cluster.connecting import role_service
from hastore.config import GroupNodeConfig, MasterConfig, SlaveConfig, parts_of
from hastore.errors import HastoreError
from hastore.ha.client_port import ask_client_port
from hastore.sim.cluster import CLIENT_PORT, DATA_DIR, HA_PORT, PROCESS_ID
from hastore.sim.disk import SimDisk
from hastore.sim.group.etcd_director import BootClient
from hastore.sim.host import SimOffload, SimWallClock, sim_env
from hastore.sim.network import Way
from hastore.sim.seams import Freeze
from hastore.sim.sockets import HOST
from hastore_scenarios.judge.log_image import log_end
from hastore_scenarios.story.world import LinkMode, NodeFailed
from hastore_scenarios.worlds.cut_watch import WatchedDisk
from hastore_scenarios.worlds.node_config import coordinator_config, with_defaults
from hastore_scenarios.worlds.sim.coordinator import SimCoordinator
from hastore_scenarios.worlds.staged_node import STOP_WITHIN_S, StagedNode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hastore.env.interface import Disk
    from hastore.sim.network import Network
    from hastore_scenarios.story.world import CutStep

OBSERVER_PORT: Final = HA_PORT + 1
_KILLED: Final = -9
# Small, because whole files are copied at each sync, and memory is not sparse.
_SMALL_FILES: Final = {
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 64,
    "max_index_num": 512,
}


@final
@attrs.define(eq=False)
class SimLink:
    """The ways between a slave's host and its master's."""

    network: Network
    slave: str
    master: str
    on_change: Callable[[LinkMode, str], None]
    mode: LinkMode = LinkMode.OPEN
    is_untouched: bool = True

    @property
    def _to_slave(self) -> Way:
        return Way(self.master, self.slave)

    @property
    def _to_master(self) -> Way:
        return Way(self.slave, self.master)

    def cut(self, mode: LinkMode = LinkMode.CUT) -> None:
        """Interrupt the link as ``mode`` says."""
        assert mode is not LinkMode.OPEN, "heal() opens a link"
        self._set(mode, "")

    def reset(self) -> None:
        """Reset all connections."""
        self.network.reset_between(self.slave, self.master)
        self._set(self.mode, "reset")

    def slow(self, bytes_per_s: int) -> None:
        """Limit the rate of the master's bytes."""
        self.network.bytes_per_s[self._to_slave] = bytes_per_s
        self._set(self.mode, f"{bytes_per_s} bytes a second")

    def split(self, chunk_size: int) -> None:
        """Deliver bytes in pieces of at most ``chunk_size``."""
        for way in (self._to_slave, self._to_master):
            self.network.piece_max[way] = chunk_size
        self._set(self.mode, f"pieces of {chunk_size} bytes")

    def heal(self) -> None:
        """Let everything pass again."""
        for way in (self._to_slave, self._to_master):
            self.network.piece_max.pop(way, None)
            self.network.bytes_per_s.pop(way, None)
        self._set(LinkMode.OPEN, "")
        self.is_untouched = True

    def _set(self, mode: LinkMode, detail: str) -> None:
        self.mode = mode
        self.is_untouched = False
        closed = {
            LinkMode.CUT: (self._to_slave, self._to_master),
            LinkMode.CUT_TO_SLAVE: (self._to_slave,),
            LinkMode.CUT_TO_MASTER: (self._to_master,),
        }.get(mode, ())
        for way in (self._to_slave, self._to_master):
            (self.network.cut if way in closed else self.network.repair)(*way)
        if mode is LinkMode.REFUSE:
            self.network.refused[self._to_master] = None
            self.network.reset_between(self.slave, self.master)
        else:
            self.network.refused.pop(self._to_master, None)
        self.on_change(mode, detail)


@attrs.define(eq=False)
class SimRun:
    """One run of a node, in place of a process."""

    disk: SimDisk
    offload: SimOffload
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    serving: Any = None  # the Master or Slave, once it serves
    is_over: bool = False  # what its tasks still do has no effect
    freeze: Freeze | None = None


@attrs.define(eq=False, kw_only=True)
class SimWorldNode(StagedNode):
    """One host, its disk, and the node that runs on it, if one does."""

    host: str
    network: Network
    choices: random.Random
    nursery: trio.Nursery
    link: SimLink | None = None
    wall_clock: SimWallClock = attrs.field(factory=SimWallClock)
    disk: SimDisk = attrs.field(init=False)
    run: SimRun | None = None
    last_run: SimRun | None = None
    code: int | None = None
    runs: int = 0
    slow_s: float = 0.0
    failure: str = ""  # the error that ended the last run
    dies_before: CutStep | None = None  # the step of a cut that kills it

    def __attrs_post_init__(self) -> None:
        """Start with an empty disk."""
        self.disk = SimDisk(self.wall_clock.now_ms)

    # -- state

    @property
    def is_running(self) -> bool:
        """Whether a node runs."""
        return self.run is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code that a process would have had."""
        return self.code

    @property
    def live_disk(self) -> SimDisk:
        """The disk as it is now."""
        return self.disk if self.run is None else self.run.disk

    @property
    def link_mode(self) -> LinkMode:
        """The state of the link to its master."""
        return LinkMode.OPEN if self.link is None else self.link.mode

    def address(self) -> tuple[str, int] | None:
        """Return its client address; None while it does not run."""
        return (self.host, CLIENT_PORT) if self.is_running else None

    def ha_address(self) -> tuple[str, int]:
        """Return its HA address."""
        return self.host, HA_PORT

    def observer_address(self) -> tuple[str, int]:
        """Return the address for observers of its group."""
        return self.host, OBSERVER_PORT

    @property
    def data_path(self) -> Path:
        """Its directory."""
        return Path(DATA_DIR)

    def output(self) -> str:
        """Return the error that ended the last run."""
        return self.failure

    # -- control

    async def boot(self) -> None:
        """Start the node.  Raises NodeFailed if it ends before it listens."""
        self.runs += 1
        run = SimRun(self.disk, SimOffload(self.choices, self.slow_s))
        self.run = self.last_run = run
        self.code = None
        self.network.boot(self.host, self.runs)
        await self.nursery.start(self._run, run)
        if run.serving is None:
            raise NodeFailed(
                f"{self.name} ended with {self.code} before it listened", output=self.failure
            )

    async def _run(self, run: SimRun, *, task_status: trio.TaskStatus[None]) -> None:
        HOST.set(self.host)
        env = sim_env(run.disk, self.wall_clock, run.offload, PROCESS_ID + self.runs, self.name)
        if self.dies_before is not None:
            disk = WatchedDisk(run.disk, DATA_DIR, self.dies_before, lambda: self._crash(run))
            env = attrs.evolve(env, disk=cast("Disk", disk))
        main: Any = run_master if self.is_master else run_slave
        if self.group is not None:
            main = partial(run_group_node, ask_client_port=ask_client_port)
        if isinstance(self.coordinator, SimCoordinator):
            store = BootClient(self.coordinator.client_of(self.name), run)
            roles = role_service(self._group_config(), env, store)
            main = partial(run_cluster_node, roles=roles, ask_client_port=ask_client_port)
        code = 0
        try:
            with run.scope:
                async with trio.open_nursery() as nursery:
                    run.serving = await nursery.start(main, self._config(), env)
                    task_status.started()
        except BaseException as error:
            if not _is_expected(error, is_over=run.is_over):
                raise
            code, self.failure = 1, str(_as_itself(error))
        finally:
            if not run.is_over:
                self._over(run, code)
            run.ended.set()
        if run.serving is None:
            task_status.started()

    def _parts(self) -> dict[str, Any]:
        store = {"data_dir": DATA_DIR, "flush_disk_type": self.flush}
        return parts_of({**_SMALL_FILES, **with_defaults(self.config), **store})

    def _group_config(self) -> GroupNodeConfig:
        assert self.group is not None, "a node of a group"
        return GroupNodeConfig(
            role=self.group.role,
            listen=(self.host, CLIENT_PORT),
            ha_listen=self.ha_address(),
            observer_listen=self.observer_address(),
            node_id=self.node_id,
            replica_group=self.group_name,
            group_ids=self.group.ids,
            remote_roles=True,
            coordinator=coordinator_config(self.config),
            **self._parts(),
        )

    def _config(self) -> GroupNodeConfig | MasterConfig | SlaveConfig:
        if self.group is not None:
            return self._group_config()
        parts, listen = self._parts(), (self.host, CLIENT_PORT)
        if self.is_master:
            ha_listen = self.ha_address()
            return MasterConfig(role=self.role, listen=listen, ha_listen=ha_listen, **parts)
        assert self.master is not None
        master = self.master.port_for_slaves()
        return SlaveConfig(master=master, slave_from=self.slave_from, listen=listen, **parts)

    def _crash(self, run: SimRun) -> None:
        """Let a run be killed by what it does: its disk is as it was before that."""
        if not run.is_over:
            self._over(run, _KILLED)
            run.scope.cancel()

    def _over(self, run: SimRun, code: int) -> None:
        run.is_over = True
        self.run = None
        self.code = code
        self.disk = run.disk.after_kill()
        self.network.shut_down(self.host, silently=False)

    async def terminate(self) -> int:
        """Ask the node to stop; return its exit code.  Raises NodeFailed after STOP_WITHIN_S."""
        run = self._current()
        run.serving.stop()
        with trio.move_on_after(STOP_WITHIN_S):
            await run.ended.wait()
        if not run.ended.is_set():
            await self.slay()
            raise NodeFailed(
                f"{self.name} did not stop within {STOP_WITHIN_S:g} s of SIGTERM",
                output=self.failure,
            )
        assert self.code is not None
        return self.code

    async def slay(self) -> int:
        """Kill the node (-9): the page cache stays, the kernel closes the sockets."""
        run = self._current()
        self._over(run, _KILLED)
        if run.freeze is not None:
            run.freeze.end()
        run.scope.cancel()
        await run.ended.wait()
        return _KILLED

    async def freeze(self) -> None:
        """Suspend its tasks."""
        run = self._current()
        host = self.host
        run.freeze = Freeze(lambda task: task.context.get(HOST) == host)
        run.freeze.begin()
        await trio.lowlevel.checkpoint()

    async def thaw(self) -> None:
        """Let its tasks run on."""
        run = self._current()
        assert run.freeze is not None
        run.freeze.end()
        run.freeze = None
        await trio.lowlevel.checkpoint()

    async def wait_gone(self) -> int:
        """Wait until it has ended; return its exit code."""
        assert self.last_run is not None
        await self.last_run.ended.wait()
        assert self.code is not None
        return self.code

    async def log_end(self) -> int:
        """Return the end of the last intact record of its log."""
        await trio.lowlevel.checkpoint()
        return log_end(self.live_disk, DATA_DIR)

    def _current(self) -> SimRun:
        assert self.run is not None, f"{self.name} does not run"
        return self.run


def _as_itself(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _is_expected(error: BaseException, *, is_over: bool) -> bool:
    """Whether a node may end with it, or it follows from a crash; other errors are defects."""
    error = _as_itself(error)
    if isinstance(error, BaseExceptionGroup):
        return all(_is_expected(one, is_over=is_over) for one in error.exceptions)
    if isinstance(error, HastoreError):
        return True
    return is_over and isinstance(error, (OSError, trio.Cancelled, trio.ClosedResourceError))

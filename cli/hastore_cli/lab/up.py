"""A replica group of processes on this machine, in the foreground.

::

    DIR/n1.toml  n1/  n1.log      a node: its configuration, its directory, its output
    DIR/etcd/  etcd.log           the coordinator, if there is one

    start ── ready: what to type next ── roles as they change ── signal ── nodes, etcd, DIR

A child never outlives this process.  One that ends is named, and not started again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.cluster.by_hand import plan
from hastore.cluster.connecting import open_coordinator
from hastore.cluster.group_records import Keys, read_group
from hastore.cluster.key_value_store import follow
from hastore.config import CoordinatorConfig
from hastore.errors import ConfigError, CoordinatorError, HastoreError, UnreachableError
from hastore.testing.free_port import FreePort
from hastore.testing.leftovers import forget_acked_offsets
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import columns, say, say_error, say_next, tell
from hastore_cli.cluster.by_hand import fail_over, hear, wait_for_master
from hastore_scenarios.worlds.process.child_process import ChildProcess, hastore_command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from hastore.cluster.group_records import GroupView

SCHEMA: Final = "hastore.up/1"
GROUP: Final = "demo"
TTL: Final = "3s"  # so that a failover can be watched
START_TIME_MAX_S: Final = 60.0
STOP_TIME_MAX_S: Final = 6.0
_LOOK_AGAIN_S: Final = 0.1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEYS: Final = Keys.of("/hastore", "DefaultCluster", GROUP)


class StartError(HastoreError):
    """A process of the group ended, or did not serve in time."""


# -- processes -----------------------------------------------------------------------------------


@final
@attrs.define(eq=False)
class Process:
    """A node or the etcd, and where its output goes."""

    name: str
    command: list[str]
    log: Path
    again: str  # what starts it again
    child: ChildProcess | None = None

    def start(self) -> None:
        """Start it."""
        self.child = ChildProcess.start(self.command, self.log)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.child is not None, "started"
        return self.child.pid

    async def watch(self, on_end: trio.MemorySendChannel[Process]) -> None:
        """Name it once it has ended."""
        assert self.child is not None, "started"
        await self.child.wait()
        await on_end.send(self)

    def last_words(self) -> str:
        """Return how it ended, and the last lines of its output."""
        assert self.child is not None, "started"
        code = self.child.returncode
        how = f"exit code {code}"
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        with contextlib.suppress(OSError):
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line]
            errors = [line for line in lines if line.startswith("error:")]
            if errors or lines:
                how += f": {(errors or lines)[-1]}"
        return how


@final
@attrs.frozen
class Node:
    """A node: its ports, its files, its process."""

    node_id: int
    client: FreePort
    ha: FreePort
    data_dir: Path
    process: Process

    @property
    def name(self) -> str:
        """Its name in `status`."""
        return self.process.name

    @property
    def address(self) -> str:
        """HOST:PORT of its client port."""
        return f"127.0.0.1:{self.client.number}"


@final
@attrs.frozen
class Etcd:
    """The coordinator."""

    client: FreePort
    peer: FreePort
    process: Process

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.client.number}"


def _etcd_of(directory: Path, binary: str) -> Etcd:
    client, peer = FreePort(), FreePort()
    own, other = f"http://127.0.0.1:{client.number}", f"http://127.0.0.1:{peer.number}"
    command = [
        binary,
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={own}",
        f"--advertise-client-urls={own}",
        f"--listen-peer-urls={other}",
        f"--initial-advertise-peer-urls={other}",
        f"--initial-cluster=default={other}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
    ]
    process = Process("etcd", command, directory / "etcd.log", " ".join(command))
    return Etcd(client, peer, process)


def _node_of(directory: Path, node_id: int, count: int, etcd: Etcd | None) -> Node:
    client, ha = FreePort(), FreePort()
    data_dir, file = directory / f"n{node_id}", directory / f"n{node_id}.toml"
    ids = ",".join(str(each) for each in range(1, count + 1))
    text = (
        f"[node]\ndata = {json.dumps(str(data_dir))}\nid = {node_id}\n"
        f'name = "n{node_id}"\ngroup = "{GROUP}"\ngroup_ids = "{ids}"\n\n'
        f'[listen]\nclient = "127.0.0.1:{client.number}"\nha = "127.0.0.1:{ha.number}"\n\n'
        f'[store]\nmapped_file_size = "64MiB"\nindex_slots = 100000\nindex_entries = 400000\n'
    )
    if etcd is not None:
        text += f'\n[cluster]\netcd = "{etcd.endpoint}"\nttl = "{TTL}"\n'
    file.write_text(text)
    command = hastore_command("node", "-c", str(file))
    process = Process(
        f"n{node_id}", command, directory / f"n{node_id}.log", f"hastore node -c {file}"
    )
    return Node(node_id, client, ha, data_dir, process)


# -- the run -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _directory(keep: Path | None, count: int) -> Iterator[Path]:
    """Yield the directory of the group; one that nobody wants to keep is removed."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="hastore-up-") as made:
            try:
                yield Path(made)
            finally:
                forget_acked_offsets(Path(made))
        return
    directory = keep.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    found = len(list(directory.glob("n[0-9].toml")))
    if found not in {0, count}:
        raise ConfigError(
            f"{directory} has a group of {found} nodes", hint=f"--nodes {found}; or another --keep"
        )
    if not found and any(directory.iterdir()):
        raise ConfigError(
            f"{directory} holds something else than a group", hint="name an empty directory"
        )
    yield directory


@final
@attrs.define(eq=False)
class Group:
    """The processes, started and ended together."""

    directory: Path
    nodes: list[Node]
    etcd: Etcd | None

    @property
    def processes(self) -> list[Process]:
        """All of them, the etcd last."""
        nodes = [node.process for node in self.nodes]
        return nodes if self.etcd is None else [*nodes, self.etcd.process]

    @property
    def coordinator(self) -> CoordinatorConfig | None:
        """How to get to the etcd."""
        return None if self.etcd is None else CoordinatorConfig(endpoints=(self.etcd.endpoint,))

    async def end(self) -> None:
        """Stop the nodes cleanly, then the etcd; kill what does not stop in time."""
        with trio.CancelScope(shield=True):
            started = [each.child for each in self.processes if each.child is not None]
            try:
                with trio.move_on_after(STOP_TIME_MAX_S):
                    for at, process in enumerate(started):
                        is_etcd = self.etcd is not None and at == len(self.nodes)
                        if is_etcd:
                            for node in started[:at]:
                                await node.wait()
                        process.send_signal(signal.SIGTERM)
                    for process in started:
                        await process.wait()
            finally:
                for process in started:
                    await process.end()
                self.release()

    def release(self) -> None:
        """Release the ports."""
        for node in self.nodes:
            node.client.release()
            node.ha.release()
        if self.etcd is not None:
            self.etcd.client.release()
            self.etcd.peer.release()


async def run_up(count: int, keep: Path | None, binary: str | None, output: str) -> int:
    """Run the group until a signal; return the exit code.

    ``binary`` is the etcd's; None: the group has no coordinator.  Raises StartError, ConfigError.
    """
    stopped_by: list[int] = []
    with trio.open_signal_receiver(*_SIGNALS) as signals, _directory(keep, count) as directory:
        etcd = None if binary is None else _etcd_of(directory, binary)
        nodes = [_node_of(directory, at, count, etcd) for at in range(1, count + 1)]
        group = Group(directory, nodes, etcd)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, signals, nursery.cancel_scope, stopped_by)
                await _run(group, is_kept=keep is not None, as_json=output == "json")
        finally:
            await group.end()
    signum = stopped_by[0]
    return 0 if signum == signal.SIGTERM else 128 + signum


async def _stop_on_signal(
    signals: AsyncIterator[int], scope: trio.CancelScope, stopped_by: list[int]
) -> None:
    stopped_by.append(await anext(signals))
    say("stopping the group")
    scope.cancel()


async def _run(group: Group, *, is_kept: bool, as_json: bool) -> None:
    """Start the group, say what to type, then what happens; until cancelled."""
    on_end, ended = trio.open_memory_channel[Process](0)
    async with trio.open_nursery() as nursery:
        for process in reversed(group.processes):
            process.start()
            nursery.start_soon(process.watch, on_end)
        async with trio.open_nursery() as starting:
            starting.start_soon(_fail_on_end, ended)
            with trio.move_on_after(START_TIME_MAX_S) as in_time:
                epoch, master_id = await _first_master(group)
            if in_time.cancelled_caught:
                raise StartError(
                    f"the group had no master within {START_TIME_MAX_S:g} s",
                    hint=f"read {group.directory}/*.log (with --keep DIR)",
                )
            starting.cancel_scope.cancel()
        _announce(group, epoch, master_id, is_kept=is_kept, as_json=as_json)
        if group.etcd is not None:
            nursery.start_soon(_tell_roles, group, epoch)
        async for process in ended:
            say_error(f"{process.name} has ended, {process.last_words()}", None)
            say_next(f"start it again: {process.again}")


async def _fail_on_end(ended: trio.MemoryReceiveChannel[Process]) -> None:
    process = await ended.receive()
    raise StartError(
        f"{process.name} did not start: {process.last_words()}", hint="hastore up again"
    )


async def _first_master(group: Group) -> tuple[int, int]:
    """Wait until all nodes are there and one leads; return its epoch and its id."""
    if group.coordinator is None:
        return await _name_master(group)
    wanted = {node.node_id for node in group.nodes}
    async with _snapshots(group.coordinator) as views:
        async for view in views:
            leads = _leading(view)
            if leads is not None and wanted <= view.members.keys():
                return leads
    raise AssertionError("views never end")


async def _name_master(group: Group) -> tuple[int, int]:
    addresses = [node.address for node in group.nodes]
    while True:
        with contextlib.suppress(UnreachableError):
            heard = await hear(addresses)
            if not heard.silent:
                break
        await trio.sleep(_LOOK_AGAIN_S)
    ids = [node.node_id for node in group.nodes]
    planned = plan(heard.nodes, ids)
    master_id = await fail_over(heard, planned, ids, accept_loss=False, chosen=None)
    await wait_for_master(heard, master_id, planned.epoch, START_TIME_MAX_S)
    return planned.epoch, master_id


@contextlib.asynccontextmanager
async def _snapshots(coordinator: CoordinatorConfig) -> AsyncIterator[AsyncIterator[GroupView]]:
    """Yield the group as it is, then after each change; wait for an etcd that does not answer."""

    async def views() -> AsyncGenerator[GroupView]:
        while True:
            try:
                async with (
                    open_coordinator(coordinator) as store,
                    follow(store, _KEYS.base) as snapshots,
                ):
                    async for snapshot in snapshots:
                        yield read_group(_KEYS, snapshot)
            except CoordinatorError:
                await trio.sleep(_LOOK_AGAIN_S)

    async with contextlib.aclosing(views()) as stream:
        yield stream


def _leading(view: GroupView) -> tuple[int, int] | None:
    """Return epoch and id of the master that serves; None: there is none."""
    leader = view.leader
    if leader is None:
        return None
    member = view.members.get(leader.holder.node_id)
    is_master = member is not None and member.role == "master"
    return (leader.epoch, leader.holder.node_id) if is_master else None


async def _tell_roles(group: Group, epoch: int) -> None:
    """Say who becomes master, from the next epoch on."""
    assert group.coordinator is not None, "checked"
    async with _snapshots(group.coordinator) as views:
        async for view in views:
            leads = _leading(view)
            if leads is not None and leads[0] > epoch:
                epoch = leads[0]
                say(f"n{leads[1]} is master of epoch {epoch}")


# -- what it says --------------------------------------------------------------------------------


def _announce(group: Group, epoch: int, master_id: int, *, is_kept: bool, as_json: bool) -> None:
    if as_json:
        echo_json(_json(group, epoch, master_id))
        return
    how = "without a coordinator" if group.etcd is None else f"by etcd {group.etcd.endpoint}"
    say(f"ready: {len(group.nodes)} nodes, {how}, in {group.directory}")
    rows: list[tuple[str, ...]] = [
        (
            node.name,
            "master" if node.node_id == master_id else "slave",
            str(node.process.pid),
            node.address,
        )
        for node in group.nodes
    ]
    for line in columns(("node", "role", "pid", "address"), rows):
        tell(line)
    for step in _steps(group, master_id):
        say_next(step)
    if not is_kept:
        say("Ctrl-C ends all of it, and removes its files; --keep DIR keeps them")


def _steps(group: Group, master_id: int) -> list[str]:
    addresses = ",".join(node.address for node in group.nodes)
    master = next(node for node in group.nodes if node.node_id == master_id)
    send = f"echo hello | hastore produce orders --addr {addresses}"
    kill = f"kill -9 {master.process.pid}"
    if group.etcd is not None:
        status = f"hastore cluster status --etcd {group.etcd.endpoint}"
        return [send, status, f"{kill}     # the master: another one takes over"]
    others = [node for node in group.nodes if node is not master]
    named = " ".join(f"--node {node.address}" for node in others)
    ids = ",".join(str(node.node_id) for node in group.nodes)
    return [send, f"{kill} && hastore cluster failover {named} --ids {ids}"]


def _json(group: Group, epoch: int, master_id: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "directory": str(group.directory),
        "group": GROUP,
        "etcd": None if group.etcd is None else group.etcd.endpoint,
        "epoch": epoch,
        "master": master_id,
        "nodes": [
            {
                "id": node.node_id,
                "name": node.name,
                "address": node.address,
                "ha_address": f"127.0.0.1:{node.ha.number}",
                "data": str(node.data_dir),
                "log": str(node.process.log),
                "pid": node.process.pid,
                "start": node.process.again,
            }
            for node in group.nodes
        ],
    }

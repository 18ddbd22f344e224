"""The axes of puts: tasks, the same over TCP, flushing, slaves, queues, bodies.

At each point three clusters are up at the same time and measured in turn: one with the C extension,
one in pure Python, and a bare loop (``bare_log``) with as many peers.  In process, the tasks run
beside the master; over TCP, on one connection of a client process.  ``cpu_us`` is CPU time for each
message until nothing is left to dispatch or flush; ``cpu_us_master`` includes tasks in process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import attrs

from tests.bench.axes.axis import Axis
from tests.bench.axes.child import Child, cpu_s, settle, uses_extension
from tests.bench.axes.load import WARM_UP_COUNT, Load
from tests.bench.axes.measured import BARE, PURE, Point, Round, Scale, in_turn, node_variants
from tests.bench.nodes import anonymous_mib, node_process

CENTRE = Load()
TASKS = (1, 16, 64, 256)
SLAVES = (1, 5, 20)
QUEUES = (1, 100, 10_000)
BODY_SIZES = {
    "100 B": 100,
    "1 KiB": 1024,
    "16 KiB": 16 * 1024,
    "256 KiB": 256 * 1024,
    "4 MiB": 4 * 1024 * 1024,
}
FIGURES = ("rate", "p50_us", "p99_us", "p999_us", "cpu_us_master", "cpu_us_slave", "rss_mib")
WARM_UP_S = 0.2
DROPPED_FROM = 16 * 1024  # size of a body
STRETCHED_SIZE = 64 * 1024 * 1024  # a round goes on for its p99.9, but not beyond these bytes


def put_axes() -> list[Axis]:
    """Return the axes of puts."""
    over_tcp = attrs.evolve(CENTRE, over_tcp=True)
    return [
        _axis("producers", "tasks that await put, in the master's process", _steps("tasks", TASKS)),
        _axis(
            "tcp",
            "tasks that await send, on one connection of a client",
            _steps("tasks", TASKS, over_tcp),
        ),
        _axis("flush", "SYNC_FLUSH, on the master or on both", _flush_loads()),
        _axis("slaves", "slaves, one of which must acknowledge", _steps("slaves", SLAVES)),
        _axis("queues", "queues, each the next message's in turn", _steps("queues", QUEUES)),
        _axis(
            "bodies",
            "size of a message's body",
            {
                label: (size, attrs.evolve(CENTRE, body_size=size))
                for label, size in BODY_SIZES.items()
            },
        ),
    ]


Loads = dict[str, tuple[float, Load]]


def _steps(field: str, values: tuple[int, ...], centre: Load = CENTRE) -> Loads:
    """Return the centre with each of some values of a field, by its label."""
    return {
        f"{value:,} {field[:-1] if value == 1 else field}": (
            value,
            attrs.evolve(centre, **{field: value}),
        )
        for value in values
    }


def _flush_loads() -> Loads:
    synced = attrs.evolve(CENTRE, is_master_flushed=True, waits_for_slave=False)
    both = attrs.evolve(CENTRE, is_master_flushed=True, is_slave_flushed=True)
    return {
        f"{name}, {tasks} tasks": (tasks, attrs.evolve(load, tasks=tasks))
        for name, load in (("async slave", synced), ("both synced", both))
        for tasks in (16, 64)
    }


def _axis(key: str, title: str, loads: Loads) -> Axis:
    return Axis(
        key,
        title,
        FIGURES,
        {
            label: partial(measure_load, label, value, load)
            for label, (value, load) in loads.items()
        },
    )


@attrs.frozen
class Cluster:
    """What runs the load: the child with the tasks, and the processes by their parts."""

    tasks: Child
    pids: dict[str, list[int]]

    def round(self, load: Load, scale: Scale) -> Round:
        """Put for a while; return the figures."""
        pids = [pid for group in self.pids.values() for pid in group]
        before = {pid: cpu_s(pid) for pid in pids}
        is_large = load.body_size >= DROPPED_FROM
        measured = self.tasks.ask(
            tasks=load.tasks,
            seconds=scale.seconds / 2 if is_large else scale.seconds,
            count_min=_count_min(load, scale),
        )
        settle(pids)
        count = measured.pop("count")
        for part, group in self.pids.items():
            used = sum(cpu_s(pid) - before[pid] for pid in group)
            measured[f"cpu_us_{part}"] = used / count * 1e6
        measured["cpu_us"] = sum(cpu_s(pid) - before[pid] for pid in pids) / count * 1e6
        nodes = self.pids["master"] + self.pids["slave"]
        measured["rss_mib"] = max(anonymous_mib(pid) for pid in nodes)
        measured["mib_per_s"] = measured["rate"] * load.body_size / 2**20
        return measured


async def measure_load(
    label: str, value: float, load: Load, base: Path, scale: Scale
) -> list[Point]:
    """Measure one point."""
    async with contextlib.AsyncExitStack() as stack:
        clusters = {}
        for variant in (*node_variants(), BARE):
            opening = (
                bare_cluster(base / variant, load)
                if variant == BARE
                else node_cluster(base / variant, load, is_pure=variant == PURE)
            )
            clusters[variant] = await stack.enter_async_context(opening)
            count = max(load.queues, min(WARM_UP_COUNT, _count_min(load, scale)))
            clusters[variant].tasks.ask(
                tasks=load.tasks, seconds=min(WARM_UP_S, scale.seconds), count_min=count
            )
        rounds = in_turn(
            {
                variant: partial(_round, cluster, load, base / variant, scale)
                for variant, cluster in clusters.items()
            },
            scale,
        )
    return [Point(label, value, rounds)]


def _count_min(load: Load, scale: Scale) -> int:
    """Return how many messages make a round longer; of large ones fewer have to do."""
    return min(scale.count_min, max(STRETCHED_SIZE // load.body_size, load.tasks))


def _round(cluster: Cluster, load: Load, path: Path, scale: Scale) -> Round:
    """Put for a while; then let the pages of large bodies be used again.

    A virtual machine may get fresh memory from its host page by page: a pwrite then takes 2.3 ns a
    byte, and 0.15 into pages that the guest had before; 256 KiB bodies fill two gigabytes a second.
    """
    measured = cluster.round(load, scale)
    if load.body_size >= DROPPED_FROM:
        unmapped = cluster.tasks.ask(unmap=str(path))["unmapped"]
        assert unmapped or load.over_tcp, f"no file below {path} is mapped"
        for file in path.rglob("*"):
            if file.is_file():
                drop_cached(file)
    return measured


def drop_cached(file: Path) -> None:
    """Write a file to the disk, and its pages back to the kernel."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def node_cluster(base: Path, load: Load, *, is_pure: bool) -> AsyncIterator[Cluster]:
    """Run a master and its slaves, and the tasks that put."""
    base.mkdir(parents=True)
    async with contextlib.AsyncExitStack() as stack:
        options = {"is_pure": is_pure, "load": attrs.asdict(load)}
        if load.over_tcp:
            node = await stack.enter_async_context(
                node_process(
                    "master", "master", "--ha-listen", "127.0.0.1:0",
                    "--mapped-file-size", str(load.file_size),
                    path=base / "m", is_pure=is_pure,
                )
            )  # fmt: skip
            assert node.ha_address is not None
            host, port = node.ha_address
            master_pid = node.process.pid
        else:
            tasks = stack.enter_context(
                Child("tests.bench.axes.master_child", path=str(base / "m"), **options)
            )
            host, port = tasks.greeting["ha_address"]
            master_pid = tasks.pid
        slaves = [
            await stack.enter_async_context(
                node_process(
                    "slave", "slave", "--master", f"{host}:{port}",
                    "--flush", load.slave_flush.value,
                    "--mapped-file-size", str(load.file_size),
                    path=base / f"s{number}", is_pure=is_pure,
                )
            )
            for number in range(load.slaves)
        ]  # fmt: skip
        pids = {"master": [master_pid], "slave": [slave.process.pid for slave in slaves]}
        if load.over_tcp:
            tasks = stack.enter_context(
                Child("tests.bench.axes.client_child", address=node.address, **options)
            )
            pids["client"] = [tasks.pid]
        else:
            tasks.ask(slaves=load.slaves)
        for group in pids.values():
            assert all(uses_extension(pid) is not is_pure for pid in group)
        yield Cluster(tasks, pids)


@contextlib.asynccontextmanager
async def bare_cluster(base: Path, load: Load) -> AsyncIterator[Cluster]:
    """Run the bare loop with its peers."""
    with contextlib.ExitStack() as stack:
        options = {"load": attrs.asdict(load)}
        peers = [
            stack.enter_context(
                Child("tests.bench.axes.bare_peer", path=str(base / f"s{number}"), **options)
            )
            for number in range(load.slaves)
        ]
        addresses = [peer.greeting["address"] for peer in peers]
        pids = {"slave": [peer.pid for peer in peers]}
        if load.over_tcp:
            relay = stack.enter_context(
                Child(
                    "tests.bench.axes.bare_peer",
                    path=str(base / "m"),
                    slave=addresses[0],
                    **options,
                )
            )
            options["relay"] = relay.greeting["address"]
            pids["master"] = [relay.pid]
        tasks = stack.enter_context(
            Child("tests.bench.axes.bare_child", path=str(base / "m"), slaves=addresses, **options)
        )
        pids["client" if load.over_tcp else "master"] = [tasks.pid]
        yield Cluster(tasks, pids)

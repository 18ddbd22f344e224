"""A replica group of two against a classic pair: the same puts, and the same catch-up, in turn.

Rates of a catch-up scatter by half on a machine that does other things; its CPU time does not, so
that of both nodes is measured beside them.

A pair is measured right after the other, in changing order.  The group's set has both nodes, so
that each put waits for the slave, as it does for a SYNC_MASTER's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import trio

import hastore
from hastore.broker.node.master import Master
from hastore.config import HAConfig, MasterConfig, StoreConfig
from hastore.env.real import real_env
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.ha.group_ha_service import GroupHAService
from hastore.status import HAProtocol
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import NodeIdentity
from tests.bench.catch_up_bench import Copied, run, write_log
from tests.bench.nodes import cpu_s as node_cpu_s
from tests.bench.nodes import master_here, node_process, scratch, with_slave
from tests.bench.put_bench import await_rate, submit_rate
from tests.support.bench.bound import Bound, Row

PAIRS = 9
SUBMITTED = 30_000
AWAITED = 20_000
CATCH_UP_PAIRS = 9
LOG_SIZE = 512 * 1024 * 1024
GROUP = "bench"
_FIRST = EpochHistory((EpochEntry(1, 0),))

SUBMIT = Bound(
    key="autoswitch_submit",
    work="replica group of two: 64 puts in flight through submit, slave in another process",
    text="≥ 90 % of the classic pair",
    limit=0.90,
    at_least=True,
)
AWAIT = Bound(
    key="autoswitch_await",
    work="replica group of two: 64 awaiting producer tasks, slave in another process",
    text="≥ 90 % of the classic pair",
    limit=0.90,
    at_least=True,
)
CATCH_UP = Bound(
    key="autoswitch_catch_up",
    work="replica group: catch-up of a fresh slave, two processes",
    text="≥ 90 % of the classic pair",
    limit=0.90,
    at_least=True,
)
CATCH_UP_CPU = Bound(
    key="autoswitch_catch_up_cpu",
    work="the same, CPU time of master and slave",
    text="≤ 1.1 × the classic pair's",
    limit=1.1,
)


async def bench_autoswitch(directory: Path) -> list[Row]:
    """Measure both protocols in turn."""
    return [*await _puts(directory), *await _catch_up(directory)]


async def _puts(directory: Path) -> list[Row]:
    submits: list[dict[str, float]] = []
    awaits: list[dict[str, float]] = []
    for index in range(PAIRS):
        submit: dict[str, float] = {}
        waited: dict[str, float] = {}
        for kind in ("group", "classic") if index % 2 else ("classic", "group"):
            with scratch(directory, kind) as base:
                async with _pair(kind, base) as master:
                    await submit_rate(master, 5_000)
                    submit[kind] = await submit_rate(master, SUBMITTED)
                    waited[kind] = await await_rate(master, AWAITED)
        submits.append(submit)
        awaits.append(waited)
    note = "the reference is the classic pair; producers in the master's process"
    return [
        Row.of_pairs(bound, [(one["group"], one["classic"]) for one in rates], "messages/s", note)
        for bound, rates in ((SUBMIT, submits), (AWAIT, awaits))
    ]


@contextlib.asynccontextmanager
async def _pair(kind: str, base: Path) -> AsyncIterator[Master]:
    """Run a master here and its slave as a process."""
    if kind == "classic":
        async with master_here(base / "m") as master, with_slave(master, base / "s"):
            yield master
        return
    async with hastore.open_master(_group_master(base / "m")) as master:
        host, port = master.ha_address
        async with node_process(
            "slave", "slave", "--master", f"{host}:{port}", "--ha-protocol", "autoswitch",
            "--node-id", "2", "--node-group", GROUP, path=base / "s",
        ):  # fmt: skip
            assert isinstance(master.ha_service, GroupHAService)
            while master.ha_service.sync_state_set.accepted != {1, 2}:
                await trio.sleep(0.01)
            yield master


def _group_master(path: Path) -> MasterConfig:
    return MasterConfig(
        store=StoreConfig(data_dir=str(path)),
        listen=None,
        ha_listen=("127.0.0.1", 0),
        ha=HAConfig(protocol=HAProtocol.AUTOSWITCH, slave_timeout_ms=30_000),
        node_id=1,
        replica_group=GROUP,
    )


async def _catch_up(directory: Path) -> list[Row]:
    pairs: list[tuple[float, float]] = []
    cpu_pairs: list[tuple[float, float]] = []
    size = 0
    with scratch(directory, "autoswitch-catch-up") as base:
        async with contextlib.AsyncExitStack() as stack:
            masters, pids = {}, {}
            for kind in ("classic", "group"):
                size = write_log(base / kind, LOG_SIZE)
                flags = ["--broker-role", "ASYNC_MASTER"]
                if kind == "group":
                    _adopt(base / kind)
                    flags += ["--ha-protocol", "autoswitch", "--node-id", "1"]
                    flags += ["--node-group", GROUP]
                node = await stack.enter_async_context(
                    node_process(
                        kind, "master", *flags, "--ha-listen", "127.0.0.1:0", path=base / kind
                    )
                )
                assert node.ha_address is not None
                pids[kind] = node.process.pid
                masters[kind] = f"{node.ha_address[0]}:{node.ha_address[1]}"
            for index in range(CATCH_UP_PAIRS + 1):
                one: dict[str, Copied] = {}
                cpu_s: dict[str, float] = {}
                for kind in ("group", "classic") if index % 2 else ("classic", "group"):
                    os.sync()  # no write-back of the last run during this one
                    masters_cpu_s = node_cpu_s(pids[kind])
                    with scratch(base, "slave") as path:
                        one[kind] = run(
                            "tests.bench.slave_process",
                            path,
                            masters[kind],
                            size,
                            *([GROUP] if kind == "group" else []),
                        )
                    masters_cpu_s = node_cpu_s(pids[kind]) - masters_cpu_s
                    cpu_s[kind] = masters_cpu_s + one[kind].cpu_s
                if index:  # the first warms the page cache
                    pairs.append((one["group"].gb_per_s, one["classic"].gb_per_s))
                    cpu_pairs.append((cpu_s["group"] / size * 1e9, cpu_s["classic"] / size * 1e9))
    note = f"the reference is the classic pair; a log of {size / 2**20:.0f} MiB"
    return [
        Row.of_pairs(CATCH_UP, pairs, "GB/s", note=note),
        Row.of_pairs(CATCH_UP_CPU, cpu_pairs, "CPU s/GB", note=note),
    ]


def _adopt(path: Path) -> None:
    """Make a classic log the first epoch of a group."""
    env = real_env()
    EpochFile(env.disk, str(path / EPOCH_FILE)).store(_FIRST)
    NodeIdentity.open(
        env.disk,
        str(path),
        node_id=1,
        group=GROUP,
        last_exit_ok=True,
        boot_id=env.boot_id,
        randomness=env.randomness,
        adopt=True,
    )

"""A group of processes whose etcd runs out of space, and what a loaded group costs its etcd."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from hastore.cluster.etcd_client import EtcdClient
from hastore.cluster.etcd_encoding import Answer
from hastore.cluster.etcd_http import EtcdHttp
from hastore.cluster.key_value_store import Put
from hastore.errors import CoordinatorNoSpaceError
from tests.integration.elected_group import ElectedGroup, elected_group
from tests.patience import PROCESS_WITHIN_S
from tests.support.commands.in_process import hastore_here
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind

pytestmark = pytest.mark.timeout(300)
QUOTA = 2 << 20  # bytes
VALUE = b"x" * (256 << 10)
WATCHED_S = 30.0
REVISIONS_A_SECOND_MAX = 0.5


@pytest.fixture
def small(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd with a small quota."""
    options = [f"--quota-backend-bytes={QUOTA}"]
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd", options=options) as server:
        yield server


async def fill(store: EtcdClient) -> None:
    """Write until etcd raises its alarm."""
    with contextlib.suppress(CoordinatorNoSpaceError):
        while True:
            await store.commit([], [Put("/other", VALUE)])


async def make_room(etcd: EtcdServer, store: EtcdClient) -> None:
    """Do what the next step of a full etcd says."""
    revision = (await store.read("/other")).revision
    async with EtcdHttp.open(None) as http:

        async def ask(path: str, **body: object) -> Answer:
            return await http.ask(etcd.endpoint, f"/v3/{path}", body, {}, PROCESS_WITHIN_S)

        await ask("kv/compaction", revision=str(revision), physical=True)
        await ask("maintenance/defragment")
        for alarm in (await ask("maintenance/alarm", action="GET")).rows("alarms"):
            await ask("maintenance/alarm", action="DEACTIVATE", **alarm.fields)


async def told(*words: str) -> str:
    """Return what a command prints once that names the alarm."""
    with trio.fail_after(PROCESS_WITHIN_S):
        while True:
            done = await trio.to_thread.run_sync(partial(hastore_here, *words))
            if "NOSPACE" in done.stdout:
                return done.stdout
            await trio.sleep(0.2)


async def test_a_full_etcd_is_named_and_a_node_that_starts_waits_for_room(
    tmp_path: Path, small: EtcdServer
) -> None:
    """It ended with an error; status, check and doctor said that all was well."""
    async with elected_group(tmp_path / "group", small) as group:
        first = await group.master_id()
        other = first % 3 + 1
        await fill(group.store)
        await group.acknowledges_for(1.0)
        node = f"127.0.0.1:{group.ports[first][0].number}"
        assert (await told("check", node)).startswith("WARNING")
        assert "alarm disarm" in await told("doctor", node, "--etcd", small.endpoint)
        assert "alarm disarm" in await told("cluster", "status", "--etcd", small.endpoint)
        shown = json.loads(await told("status", node, "-o", "json"))
        assert "NOSPACE" in json.dumps(shown)
        group.nodes[other].send_signal(signal.SIGKILL)
        await group.nodes[other].wait()
        group.start(other)
        await trio.sleep(5.0)
        assert group.nodes[other].returncode is None, "it waits"
        await make_room(small, group.store)
        await group.settled()
        await group.acknowledges_for(1.0)


async def revisions_a_second(group: ElectedGroup) -> float:
    """Return how many revisions etcd gets in a second."""
    before = (await group.store.read("/")).revision
    await trio.sleep(WATCHED_S)
    return ((await group.store.read("/")).revision - before) / WATCHED_S


@pytest.mark.soak
async def test_a_loaded_group_costs_etcd_little(tmp_path: Path) -> None:
    """Three nodes with ttl 3 s; each revision stays until a compaction."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as etcd:
        async with elected_group(tmp_path / "group", etcd) as group:
            await group.settled()
            await group.acknowledges_for(1.0)
            loaded = await revisions_a_second(group)
            print(f"{loaded:.2f} revisions a second under load")
    assert 0 < loaded <= REVISIONS_A_SECOND_MAX

"""Two replica groups of one cluster with one topic: processes, a real etcd, load over both.

The producer and the consumer are given the nodes of the first group only; they find the second one
by the routes.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.client.send_result import PendingSend
from hastore.cluster.etcd_client import EtcdClient, EtcdConfig
from hastore.errors import HastoreError
from hastore.message import Message
from tests.integration.elected_group import IDS, TOPIC, ElectedGroup
from tests.integration.stock_client import CONSUMER, PRODUCER, find_stock_python, run
from tests.patience import PROCESS_WITHIN_S
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind

IN_FLIGHT: Final = 32
QUEUES: Final = 4
_PACE_S: Final = 0.002
_LOOK_S: Final = 0.05


@attrs.define(eq=False)
class Cluster:
    """The groups, and what became of the messages of one producer over both."""

    groups: tuple[ElectedGroup, ElectedGroup]
    acknowledged: dict[str, int] = attrs.field(factory=dict)  # PUT_OK: key → client port
    consumed: Counter[str] = attrs.field(factory=Counter)  # by key
    is_over: bool = False

    def acknowledged_by(self, group: ElectedGroup) -> int:
        """Return how many messages a group has answered PUT_OK."""
        ports = {port for _, port in group.addresses}
        return sum(port in ports for port in self.acknowledged.values())

    async def knows_both(self) -> None:
        """Wait until every node's route names both groups."""
        for group in self.groups:
            for address in group.addresses:
                names: set[str] = set()
                with trio.fail_after(PROCESS_WITHIN_S):
                    while names != {"g1", "g2"}:
                        async with AdminClient.connect(address) as admin:
                            route = await admin.route(TOPIC)
                        names = {broker["brokerName"] for broker in route["brokerDatas"]}
                        await trio.sleep(_LOOK_S)

    async def produce(self) -> None:
        """Send messages until the load is over."""
        room, number = trio.Semaphore(IN_FLIGHT), 0
        async with (
            Producer.connect(
                self.groups[0].addresses, failover_timeout_s=PROCESS_WITHIN_S
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            while not self.is_over:
                await room.acquire()
                number += 1
                key = f"key-{number}"
                pending = await producer.submit(
                    Message(TOPIC, key.encode(), properties={"UNIQ_KEY": key})
                )
                nursery.start_soon(self._record, key, pending, room)
                await trio.sleep(_PACE_S)

    async def _record(self, key: str, pending: PendingSend, room: trio.Semaphore) -> None:
        with contextlib.suppress(HastoreError):  # unknown: in the log once, or not at all
            result = await pending.wait()
            if result.ok:
                assert result.message_id is not None
                self.acknowledged[key] = int(result.message_id[8:16], 16)
        room.release()

    async def consume(self) -> None:
        """Read the topic from both groups, without an end."""
        async with Consumer.connect(
            self.groups[0].addresses, failover_timeout_s=PROCESS_WITHIN_S
        ) as consumer:
            async for message in consumer.messages(TOPIC):
                self.consumed[message.body.decode()] += 1

    async def goes_on(self, group: ElectedGroup, count: int) -> None:
        """Wait until a group has answered more messages PUT_OK."""
        wanted = self.acknowledged_by(group) + count
        with trio.move_on_after(PROCESS_WITHIN_S) as scope:
            while self.acknowledged_by(group) < wanted:
                await trio.sleep(_LOOK_S)
        assert not scope.cancelled_caught, f"{group.name} acknowledges nothing"

    async def kill_master(self, group: ElectedGroup, other: ElectedGroup) -> None:
        """Kill a group's master; meanwhile the other goes on; then start the killed node again."""
        former = await group.master_id()
        before = self.acknowledged_by(other)
        group.nodes[former].send_signal(signal.SIGKILL)
        await group.nodes[former].wait()
        await group.view(
            lambda view: view.leader is not None and view.leader.holder.node_id != former,
            "another master than the killed one",
        )
        assert self.acknowledged_by(other) - before > 20, "puts to the other group go on"
        await self.goes_on(group, 20)
        group.start(former)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        yield server


async def create_topic(group: ElectedGroup) -> None:
    """Make the topic on a group's master, once it serves."""
    with trio.fail_after(PROCESS_WITHIN_S):
        while True:
            at = await group.master_id()
            with contextlib.suppress(HastoreError):
                async with AdminClient.connect(group.addresses[at - 1]) as admin:
                    await admin.create_topic(TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
                return
            await trio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def two_groups(directory: Path, etcd: EtcdServer) -> AsyncIterator[Cluster]:
    """Run two groups that have one topic, and know of each other."""
    async with EtcdClient.open(EtcdConfig(endpoints=(etcd.endpoint,))) as store:
        groups = []
        try:
            for name in ("g1", "g2"):
                (directory / name).mkdir(parents=True)
                groups.append(ElectedGroup(directory / name, (etcd,), store, name))
            first, second = groups
            for group in groups:
                for node_id in IDS:
                    group.start(node_id)
            for group in groups:
                await create_topic(group)
            cluster = Cluster((first, second))
            await cluster.knows_both()
            yield cluster
        finally:
            for group in groups:
                await group.end()


async def test_a_topic_is_spread_over_two_groups_that_fail_over_by_themselves(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """A master of each is killed: nothing acknowledged is lost, and a consumer sees all of it."""
    async with two_groups(tmp_path / "cluster", etcd) as cluster:
        first, second = cluster.groups
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.consume)
            async with trio.open_nursery() as load:
                load.start_soon(cluster.produce)
                for group in cluster.groups:
                    await cluster.goes_on(group, 200)
                await cluster.kill_master(second, first)
                await cluster.kill_master(first, second)
                for group in cluster.groups:
                    await group.settled()
                cluster.is_over = True
            with trio.move_on_after(PROCESS_WITHIN_S) as scope:
                while not cluster.acknowledged.keys() <= cluster.consumed.keys():
                    await trio.sleep(_LOOK_S)
            missing = cluster.acknowledged.keys() - cluster.consumed.keys()
            assert not scope.cancelled_caught, f"not consumed: {sorted(missing)[:5]}"
            nursery.cancel_scope.cancel()
        assert [key for key, count in cluster.consumed.items() if count > 1] == []
        for group in cluster.groups:
            await group.same_ends()
            await group.stop()
        logs = {group.name: [key for _, _, key in group.log()] for group in cluster.groups}
        ports = {port: group.name for group in cluster.groups for _, port in group.addresses}
        there = {name: set(keys) for name, keys in logs.items()}
        lost = [key for key, port in cluster.acknowledged.items() if key not in there[ports[port]]]
        assert lost == [], "PUT_OK, and not in the log of the group that answered"
        counts = Counter(key for keys in logs.values() for key in keys)
        assert [key for key, count in counts.items() if count > 1] == []
        print({name: len(keys) for name, keys in logs.items()})


@pytest.mark.soak
async def test_stock_clients_use_both_groups(tmp_path: Path, etcd: EtcdServer) -> None:
    """They are given the nodes of one as name servers."""
    python = find_stock_python()
    async with two_groups(tmp_path / "cluster", etcd) as cluster:
        first, _ = cluster.groups
        where = ";".join(f"{host}:{port}" for host, port in first.addresses)
        await run(python, PRODUCER, where, tmp_path, TOPIC, 0, 40, 0)
        lines = await run(
            python, CONSUMER, where, tmp_path, TOPIC, "CID_both", "*", "no", 40, PROCESS_WITHIN_S
        )
        rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
        assert sorted(row["number"] for row in rows) == list(range(40))
        for group in cluster.groups:
            await group.same_ends()
            await group.stop()
        counts = [len(group.log()) for group in cluster.groups]
    assert sum(counts) == 40
    assert all(count >= 10 for count in counts), counts

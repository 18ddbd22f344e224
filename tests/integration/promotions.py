"""A replica group of processes under load, whose master is killed again and again.

Producers send each message once and record its outcome; consumers record what they see.  All of
them connect to the node that was promoted last.  Messages are known by their UNIQ_KEYs.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from hastore.client.consume_from import ConsumeFrom
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.client.send_result import PendingSend
from hastore.env.real import real_env
from hastore.errors import HastoreError
from hastore.message import PROPERTY_UNIQ_KEY, Message, StoredMessage
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.testing.cluster import Cluster
from hastore.testing.node import ClusterNode
from hastore_scenarios.judge.checker import LogRecord
from hastore_scenarios.judge.log_image import read_records
from tests.integration.kept_messages import consume_queue_errors
from tests.patience import PROCESS_WITHIN_S
from tests.support.nodes.harness import log_bytes
from tests.support.waiting import eventually

T = TypeVar("T")
TOPIC: Final = "orders"
GROUP: Final = "billing"
QUEUES: Final = 2
PRODUCERS: Final = 3
IN_FLIGHT: Final = 8
PACE_S: Final = 0.004  # between two messages of a producer: a load that leaves CPU for the nodes
FILE_SIZE: Final = 1024 * 1024
_AGAIN_S: Final = 0.02


@attrs.define(eq=False)
class Load:
    """What producers and consumers have done."""

    cluster: Cluster
    master: ClusterNode
    acknowledged: dict[str, int] = attrs.field(factory=dict)  # PUT_OK: key → physic offset
    refused: set[str] = attrs.field(factory=set)  # certainly not stored
    sent: set[str] = attrs.field(factory=set)
    by_group: set[str] = attrs.field(factory=set)  # seen by the group's consumer
    # Seen by one that goes on where it was in each queue, whichever node it asks.
    in_order: list[dict[int, str]] = attrs.field(factory=lambda: [{} for _ in range(QUEUES)])
    _is_over: bool = attrs.field(default=False, init=False)

    async def produce(self) -> None:
        """Send messages until the load is over."""
        while not self._is_over:
            with contextlib.suppress(HastoreError):
                async with Producer.connect(self.master.address) as producer:
                    await self._send_over(producer)
            await trio.sleep(_AGAIN_S)

    async def _send_over(self, producer: Producer) -> None:
        """Send over one connection until it breaks."""
        async with trio.open_nursery() as nursery:
            try:
                while not self._is_over:
                    pending = await producer.submit(Message(TOPIC, b"x" * 200))
                    assert pending.unique_key is not None
                    self.sent.add(pending.unique_key)
                    nursery.start_soon(self._record, pending)
                    await trio.sleep(PACE_S)
            except HastoreError:
                return

    async def _record(self, pending: PendingSend) -> None:
        key = pending.unique_key
        assert key is not None
        try:
            result = await pending.wait()
        except HastoreError:
            return  # unknown: in the log once, or not at all
        if result.ok:
            assert result.physic_offset is not None
            self.acknowledged[key] = result.physic_offset
        elif not result.status.stored:
            self.refused.add(key)

    async def consume_as_group(self) -> None:
        """Consume with a group until cancelled."""
        while True:
            with contextlib.suppress(HastoreError):
                async with Consumer.connect(self.master.address) as consumer:
                    stream = consumer.messages(TOPIC, group=GROUP, commit_interval_s=0.1)
                    async for message in stream:
                        self.by_group.add(_key(message))
            await trio.sleep(_AGAIN_S)

    async def consume_in_order(self, queue_id: int) -> None:
        """Consume a queue from where this consumer was, until cancelled."""
        seen = self.in_order[queue_id]
        while True:
            with contextlib.suppress(HastoreError):
                async with Consumer.connect(self.master.address) as consumer:
                    start = ConsumeFrom.offset(len(seen))
                    stream = consumer.messages(TOPIC, start=start, queue_ids=[queue_id])
                    async for message in stream:
                        assert message.queue_offset == len(seen), "the next one of the queue"
                        seen[message.queue_offset] = _key(message)
            await trio.sleep(_AGAIN_S)

    async def more_acknowledged(self, count: int) -> None:
        """Wait until so many more messages are PUT_OK."""
        wanted = len(self.acknowledged) + count
        await eventually(
            lambda: len(self.acknowledged) >= wanted,
            f"{count} more messages acknowledged by {self.master.name}",
            within_s=PROCESS_WITHIN_S,
        )

    def end(self) -> None:
        """Let the producers end."""
        self._is_over = True


def _key(message: StoredMessage) -> str:
    return message.properties[PROPERTY_UNIQ_KEY]


async def blocking(act: Callable[[], T]) -> T:
    """Run a call of the cluster, which blocks, beside the load."""
    return await trio.to_thread.run_sync(act)


@contextlib.asynccontextmanager
async def group_under_load(directory: Path) -> AsyncIterator[Load]:
    """Run a group of three processes with producers and consumers; check everything at the end."""
    cluster = Cluster(directory, processes=True)
    try:
        await blocking(
            lambda: cluster.start_group(
                3, mapped_file_size=FILE_SIZE, default_topic_queue_nums=QUEUES
            )
        )
        load = Load(cluster, cluster.master)
        async with trio.open_nursery() as consumers:
            consumers.start_soon(load.consume_as_group)
            for queue_id in range(QUEUES):
                consumers.start_soon(load.consume_in_order, queue_id)
            async with trio.open_nursery() as producers:
                for _ in range(PRODUCERS):
                    producers.start_soon(load.produce)
                yield load
                load.end()
            await _settle(load)
            consumers.cancel_scope.cancel()
        for node in cluster.nodes:
            await blocking(node.stop)
        check_logs(load)
    finally:
        await blocking(cluster.close)


async def _settle(load: Load) -> None:
    """Wait until all nodes have the master's log, and the consumers all messages of it."""
    await blocking(lambda: load.cluster.wait_caught_up(within_s=PROCESS_WITHIN_S))
    records = _records(load.master)
    keys = {record.key for record in records}
    await eventually(
        lambda: load.by_group >= keys, "the group has seen all", within_s=PROCESS_WITHIN_S
    )
    await eventually(
        lambda: sum(map(len, load.in_order)) >= len(records),
        "all queues are read",
        within_s=PROCESS_WITHIN_S,
    )


def _records(node: ClusterNode) -> list[LogRecord]:
    return list(read_records(real_env().disk, str(node.data)))


def check_logs(load: Load) -> None:
    """Compare the logs with each other, with all answers, and with what consumers saw."""
    nodes = load.cluster.nodes
    records = _records(load.master)
    end = records[-1].next_offset
    assert len({log_bytes(node.data, end) for node in nodes}) == 1
    for node in nodes:
        assert _records(node)[-1].next_offset == end
        assert consume_queue_errors(node.data) == []
        assert _epochs(node, end) == _epochs(load.master, end)
    counts = Counter(record.key for record in records)
    assert [key for key, count in counts.items() if count > 1] == []
    offsets = {record.key: record.physic_offset for record in records}
    lost = {key: at for key, at in load.acknowledged.items() if offsets.get(key) != at}
    assert lost == {}
    assert offsets.keys() <= load.sent
    assert offsets.keys() & load.refused == set()
    assert load.by_group == offsets.keys()
    for queue_id, seen in enumerate(load.in_order):
        in_log = {rec.queue_offset: rec.key for rec in records if rec.queue_id == queue_id}
        assert seen == in_log


def _epochs(node: ClusterNode, end: int) -> list[tuple[int, int, int]]:
    """Return the epochs that wrote something."""
    spans = EpochFile(real_env().disk, f"{node.data}/{EPOCH_FILE}").load().spans(end)
    return [span for span in spans if span.start_offset < span.end_offset]


async def kill_and_promote(load: Load, rng: random.Random, acknowledged: int) -> None:
    """Kill the master under load, then promote a node of the set, or start the same one again."""
    cluster, former = load.cluster, load.master

    def ready() -> list[ClusterNode]:
        return [node for node in cluster.in_sync if node is not former and node.is_running]

    await eventually(ready, "a slave is in the set", within_s=PROCESS_WITHIN_S)
    await load.more_acknowledged(acknowledged)
    frozen = [node for node in cluster.slaves if rng.random() < 0.5]
    for node in frozen:
        await blocking(node.pause)
    await trio.sleep(rng.uniform(0, 0.1))  # a random instant; what is put now is not everywhere
    await blocking(former.kill)
    for node in frozen:
        if rng.random() < 0.5:
            await blocking(node.resume)  # it still gets what its socket has
        else:
            await blocking(node.kill)
            await blocking(node.restart)
    promised = dict(load.acknowledged)
    if rng.random() < 0.2:
        await blocking(former.restart)
    else:
        successor = rng.choice(ready())
        await blocking(lambda: successor.promote(within_s=PROCESS_WITHIN_S))
    load.master = cluster.master
    began = EpochFile(real_env().disk, f"{load.master.data}/{EPOCH_FILE}").load().entries[-1]
    lost = {key: offset for key, offset in promised.items() if offset >= began.start_offset}
    assert lost == {}, f"{load.master.name} is master from {began} on"
    if rng.random() < 0.5:
        await load.more_acknowledged(1)  # the former master comes back later
    for node in cluster.nodes:
        if not node.is_running:
            await blocking(node.restart)
    if rng.random() < 0.5:
        await blocking(lambda: cluster.wait_caught_up(within_s=PROCESS_WITHIN_S))

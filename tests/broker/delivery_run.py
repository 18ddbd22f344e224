"""A log with its dispatch and its delayed messages, in virtual time on a fake disk."""

from __future__ import annotations

import contextlib

import attrs
import trio

from hastore.broker.delay.schedule_message_service import ScheduleMessageService
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.config import StoreConfig
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.reput_message_service import ReputMessageService
from hastore.message import Message
from hastore.status import PutMessageStatus
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.delay_message import to_schedule
from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordError
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import TrioClock, fake_env
from tests.support.store.open_log import all_bytes, append, flush, open_log

LEVELS = "1s 5s 10s"


@attrs.define(slots=False)
class Store:
    """The part of a message store that the delivery uses."""

    commit_log: object
    consume_queues: ConsumeQueueStore
    has_index: bool = True
    queries: int = 0

    def record_at(self, physic_offset, size=None):
        record = self.commit_log.read(physic_offset, size)
        return record if len(record) == size else None

    def max_offset_in_queue(self, topic, queue_id):
        queue = self.consume_queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def query_message(self, topic, key, *, begin_ms=0, with_deleted=False):
        assert with_deleted, "a delivery counts, also if its topic was deleted since"
        self.queries += 1
        return [
            data
            for data, record in records(self.commit_log)
            if self.has_index
            and record.topic == topic
            and record.properties.get("UNIQ_KEY") == key
            and record.store_timestamp_ms >= begin_ms
        ]


def records(log):
    """Yield each record of a log as bytes and decoded, without BLANKs."""
    data = all_bytes(log)
    position = 0
    while position < len(data):
        try:
            record = decode(data, position)
        except RecordError:  # the BLANK at a file's end
            position += int.from_bytes(data[position : position + 4], "big")
            continue
        yield data[position : position + record.total_size], record
        position += record.total_size


@attrs.define(eq=False, slots=False)
class DeliveryRun:
    """One run of a node; ``again`` starts the next one on the disk that a kill leaves."""

    disk: FakeDisk = attrs.field(factory=FakeDisk)
    clock: TrioClock = attrs.field(factory=TrioClock)
    flushes: bool = True
    confirmed: int | None = None  # the confirm offset; None: the log's end
    stores_confirmed_only: bool = False
    refusal: PutMessageStatus | None = None
    attempts: list[float] = attrs.field(factory=list)
    config: StoreConfig = attrs.field(
        factory=lambda: StoreConfig(data_dir="/d", message_delay_level=LEVELS)
    )

    def __attrs_post_init__(self):
        self.env = fake_env(self.disk, self.clock)
        self.log = open_log(self.env)
        queues = ConsumeQueueStore.load(self.disk, "/d", 6_000)
        queues.recover()
        self.store = Store(self.log, queues)
        dispatcher = RecordDispatcher(queues, None, DelayLevels.parse(LEVELS))
        self.reput = ReputMessageService(
            self.env, self.log, dispatcher, lambda: self.log.max_offset, self.log.min_offset
        )
        self.service = ScheduleMessageService(
            self.env,
            self.store,
            self.config,
            self.submit,
            lambda: self.reput.behind,
            lambda: self.log.max_offset if self.confirmed is None else self.confirmed,
            stores_confirmed_only=self.stores_confirmed_only,
        )
        self.reput.subscribe(self.service.on_dispatched)

    def submit(self, message):
        """Append a message and answer it as PutMessage does."""
        self.attempts.append(trio.current_time())
        request = GroupCommitRequest(message.topic, message.queue_id)
        if self.refusal is not None and message.topic != "SCHEDULE_TOPIC_XXXX":
            request.decide(self.refusal, "on purpose")
            return request
        request.append_result = append(self.log, message)
        if self.flushes:
            flush(self.log)
        request.decide(PutMessageStatus.PUT_OK)
        self.reput.wakeup()
        return request

    def send(self, level, name, topic="orders", queue_id=0, **properties):
        """Send a delayed message whose UNIQ_KEY and body are ``name``."""
        properties = {"UNIQ_KEY": name, "DELAY": str(level), **properties}
        message = Message(topic, name.encode(), queue_id=queue_id, properties=properties)
        self.submit(to_schedule(message, self.service.levels))

    def delivered(self, topic="orders"):
        """The bodies of a topic's messages, in the log's order."""
        return [record.body.decode() for _, record in records(self.log) if record.topic == topic]

    @contextlib.asynccontextmanager
    async def running(self):
        """Dispatch and deliver while the block runs, then stop cleanly."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reput.run)
            nursery.start_soon(self.service.run)
            yield self
            nursery.cancel_scope.cancel()

    def again(self, disk=None):
        """Return a new run on ``disk``, or on the disk that a kill leaves now."""
        self.log.close(clean=False)
        return DeliveryRun(disk or self.disk.kill(), self.clock)

"""A whole store on a fake disk, beside a plain model of it: the list of its puts.

``StorePair`` does every step to both, with the services that a node runs (dispatch, flush of log,
queues and index, checkpoint), one pass at a time and when the test says so.  Its ``check_…``
methods query the store and compare each answer with a search through the list.

Dispatch catches up directly after a start: before that a queue may show outdated units.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import attrs
import trio
import trio.testing

from hastore.broker.expiry.expiry import make_expiry
from hastore.config import StoreConfig
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.reput_message_service import ReputMessageService
from hastore.flush.checkpoint_flusher import CheckpointFlusher
from hastore.flush.flush_consume_queue_service import FlushConsumeQueueService
from hastore.flush.log_flusher import LogFlusher
from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, Message
from hastore.status import AppendMessageStatus, GetMessageStatus
from hastore.store.message_store import MessageStore
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from hastore.store.record.message_codec import decode
from hastore.store.record.message_filter import TagFilter
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.nodes.clocks import a_clock
from tests.support.store.open_log import DATA_DIR, STORE_HOST, append
from tests.support.store.store_reads import get_message, offset_by_time, store_time_of

T = TypeVar("T")

FILE_SIZE = 4096
CONFIG = StoreConfig(
    data_dir=DATA_DIR,
    mapped_file_size=FILE_SIZE,
    mapped_file_size_consume_queue=20 * 8,
    max_hash_slot_num=5,
    max_index_num=25,
    delete_file_batch_max=3,
)
_NOT_IN_QUEUES = {TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE}


@attrs.frozen(kw_only=True)
class Put:
    """One message that is in the log."""

    physic_offset: int
    next_offset: int
    topic: str
    queue_id: int
    queue_offset: int | None  # None: in no queue
    tags: str | None
    keys: tuple[str, ...]
    is_indexed: bool
    store_ms: int
    body: bytes

    @property
    def offset_in_queue(self) -> int:
        """The queue offset of a message that is in a queue."""
        assert self.queue_offset is not None
        return self.queue_offset

    @property
    def range(self) -> tuple[int, int]:
        return (self.physic_offset, self.next_offset - self.physic_offset)


class StorePair:
    """A store and its model; ``puts`` are in the order of the log."""

    def __init__(self, config: StoreConfig = CONFIG) -> None:
        self.config = config
        self.disk = FakeDisk()
        self.clock = FakeClock()
        self.puts: list[Put] = []
        self.queue_ends: dict[tuple[str, int], int] = {}
        self.open()

    # -- a node's life -----------------------------------------------------------------------------

    def open(self) -> None:
        """Start on the current disk."""
        self.env = fake_env(self.disk, self.clock)
        self.store = MessageStore.open(
            self.env, self.config, store_host=STORE_HOST, needs_queue_offsets=True
        )
        log = self.store.commit_log
        self.dispatcher = RecordDispatcher(
            self.store.consume_queues,
            self.store.index_service,
            DelayLevels.parse(self.config.message_delay_level),
        )
        self.reput = ReputMessageService(
            self.env,
            log,
            self.dispatcher,
            lambda: log.max_offset,
            self.store.redispatch_from,
        )
        self.checkpoint_flusher = CheckpointFlusher(self.env, self.store.checkpoint)
        self.log_flusher = LogFlusher(
            self.env, log, lambda: log.store_timestamp_ms, self.checkpoint_flusher
        )
        self.queue_flusher = FlushConsumeQueueService(
            env=self.env,
            config=self.config,
            consume_queues=self.store.consume_queues,
            index_service=self.store.index_service,
            checkpoint_flusher=self.checkpoint_flusher,
            dispatched_timestamp_ms=lambda: self.reput.dispatched_timestamp_ms,
        )
        self.dispatch()

    def stop(self) -> None:
        """Stop cleanly, and start again."""
        self.dispatch()
        self.flush_queues()
        self.flush_log()
        self.write_checkpoint()
        self.store.close(clean=True)
        self.disk = self.disk.kill()
        self.open()
        assert self.store.commit_log.max_offset == self.end, "a clean stop loses nothing"

    def kill(self) -> None:
        """Kill the node and start it again: the page cache survives."""
        self.disk = self.disk.kill()
        self.open()
        self.keep_what_is_there(self.end)

    def cut_power(self, seed: int, share: float) -> None:
        """Cut the power, with a share of the unsynced sectors written, and start again."""
        rng = random.Random(seed)
        flushed = self.store.commit_log.flushed_offset
        self.disk = self.disk.cut_power(lambda: rng.random() < share)
        self.open()
        self.keep_what_is_there(flushed)

    def keep_what_is_there(self, at_least: int) -> None:
        """Check that the log ends after a record, not before ``at_least``; forget lost puts."""
        end = self.store.commit_log.max_offset
        ends = {0, *(put.next_offset for put in self.puts)}
        ends |= {each - each % FILE_SIZE + FILE_SIZE for each in ends}  # its BLANK too
        assert end in ends, f"the log ends at {end}, in the middle of something"
        kept = [put for put in self.puts if put.next_offset <= end]
        must = [put for put in self.puts if put.next_offset <= at_least]
        assert len(kept) >= len(must), f"{len(must)} were safe, {len(kept)} are there"
        self.puts = kept
        self.queue_ends = {}
        for put in kept:
            if put.queue_offset is not None:
                self.queue_ends[put.topic, put.queue_id] = put.queue_offset + 1

    @property
    def end(self) -> int:
        """The end of the log: the last message's, or that of a BLANK after it."""
        log = self.store.commit_log
        last = self.puts[-1].next_offset if self.puts else 0
        assert last <= log.max_offset
        return log.max_offset

    # -- steps -------------------------------------------------------------------------------------

    def put(self, messages: Sequence[Message]) -> None:
        """Append messages as one batch, or a single one as a message."""
        one = messages[0] if len(messages) == 1 else None
        result = append(self.store.commit_log, one or list(messages))
        assert result.status is AppendMessageStatus.PUT_OK
        offsets = result.batch_offsets or (result.physic_offset,)
        for message, start, end in zip(
            messages, offsets, (*offsets[1:], result.next_offset), strict=True
        ):
            self.record(message, start, end, result.store_timestamp_ms)
        queue = (messages[0].topic, messages[0].queue_id)
        if messages[0].sys_flag not in _NOT_IN_QUEUES:
            assert result.queue_offset + len(messages) == self.queue_ends[queue]

    def record(self, message: Message, start: int, end: int, store_ms: int) -> None:
        """Record a message in the model."""
        queue = (message.topic, message.queue_id)
        queue_offset = None
        if message.sys_flag not in _NOT_IN_QUEUES:
            queue_offset = self.queue_ends.get(queue, 0)
            self.queue_ends[queue] = queue_offset + 1
        properties = message.properties or {}
        names = [properties.get(PROPERTY_UNIQ_KEY, ""), *properties.get(PROPERTY_KEYS, "").split()]
        self.puts.append(
            Put(
                physic_offset=start,
                next_offset=end,
                topic=message.topic,
                queue_id=message.queue_id,
                queue_offset=queue_offset,
                tags=properties.get(PROPERTY_TAGS),
                keys=tuple(name for name in names if name),
                is_indexed=message.sys_flag != TRANSACTION_ROLLBACK_TYPE,
                store_ms=store_ms,
                body=message.body,
            )
        )

    def dispatch(self) -> None:
        """Let the dispatch catch up."""
        trio.run(self.reput.catch_up)

    def flush_log(self) -> None:
        """Run one pass of the log's flush."""
        trio.run(self.log_flusher.flush)

    def flush_queues(self) -> None:
        """Run one thorough pass of the queues' and the index's flush."""
        trio.run(self.queue_flusher.flush)

    def write_checkpoint(self) -> None:
        """Write the checkpoint to the disk."""
        trio.run(self.checkpoint_flusher.flush)

    def expire(self, *, and_queues: bool = True) -> None:
        """Let the disk be too full once: the oldest log files are deleted, then their units.

        Without ``and_queues`` the node is killed in between.
        """
        expiry = make_expiry(
            self.env,
            self.store,
            self.reput,
            clock=a_clock(self.env, self.store.commit_log),
            flush_queues=self.queue_flusher.flush,
        )
        self.disk.used = 0.99
        run(expiry.clean_commit_log_service.clean)
        self.disk.used = 0.5
        if and_queues:
            run(expiry.clean_consume_queue_service.clean)
        else:
            self.kill()

    # -- questions ---------------------------------------------------------------------------------

    @property
    def seen(self) -> list[Put]:
        """The puts that are dispatched and not deleted."""
        start, end = self.store.commit_log.min_offset, self.reput.reput_offset
        return [put for put in self.puts if put.physic_offset >= start and put.next_offset <= end]

    def queue(self, topic: str, queue_id: int) -> list[Put]:
        """Return the readable messages of a queue."""
        return [
            put
            for put in self.seen
            if (put.topic, put.queue_id) == (topic, queue_id) and put.queue_offset is not None
        ]

    def dispatched_end(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue's dispatched messages, including deleted ones."""
        ends = [
            put.queue_offset + 1
            for put in self.puts
            if (put.topic, put.queue_id) == (topic, queue_id)
            and put.queue_offset is not None
            and put.next_offset <= self.reput.reput_offset
        ]
        return ends[-1] if ends else 0

    def was_dispatched(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has ever had a message."""
        return self.dispatched_end(topic, queue_id) > 0

    def check_get(
        self, topic: str, queue_id: int, offset: int, max_count: int, expression: str | None
    ) -> None:
        """Compare one read of a queue: status, messages, next offset, both ends."""
        puts = self.queue(topic, queue_id)
        found = get_message(
            self.store,
            topic,
            queue_id,
            offset,
            max_count=max_count,
            message_filter=None if expression is None else TagFilter.parse(expression),
        )
        if not puts:
            assert found.ranges == ()
            if self.was_dispatched(topic, queue_id):  # and all its messages are deleted
                end = self.dispatched_end(topic, queue_id)
                assert (found.min_offset, found.max_offset) == (end, end), found
            else:
                assert found.status in {
                    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE,
                    GetMessageStatus.NO_MESSAGE_IN_QUEUE,
                }, found
            return
        low, high = puts[0].offset_in_queue, puts[-1].offset_in_queue + 1
        assert (found.min_offset, found.max_offset) == (low, high)
        assert self.store.min_offset_in_queue(topic, queue_id) == low
        assert self.store.max_offset_in_queue(topic, queue_id) == high
        wanted = None if expression in {None, "*"} else set(expression.replace(" ", "").split("||"))
        matching = [
            put
            for put in puts
            if put.offset_in_queue >= offset and (wanted is None or put.tags in wanted)
        ][:max_count]
        next_offset = high
        if offset < low:
            status, next_offset, matching = GetMessageStatus.OFFSET_TOO_SMALL, low, []
        elif offset == high:
            status = GetMessageStatus.OFFSET_OVERFLOW_ONE
        elif offset > high:
            status = GetMessageStatus.OFFSET_OVERFLOW_BADLY
        elif not matching:
            status = GetMessageStatus.NO_MATCHED_MESSAGE
        else:
            status = GetMessageStatus.FOUND
            if len(matching) == max_count:
                next_offset = matching[-1].offset_in_queue + 1
        assert found.status is status, (found, status)
        assert found.ranges == tuple(put.range for put in matching)
        assert found.next_begin_offset == next_offset, (found, next_offset)
        for put in matching[:2]:
            self.check_record(put)

    def check_record(self, put: Put) -> None:
        """Compare one record, read by its offset."""
        record = self.store.record_at(*put.range)
        assert record is not None, put
        message = decode(record)
        assert (message.topic, message.body) == (put.topic, put.body)
        assert message.physic_offset == put.physic_offset
        assert message.queue_offset == (put.queue_offset or 0)
        assert self.store.record_at(put.physic_offset) == record

    def check_query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> None:
        """Compare one search by key and time."""
        wanted = [
            put
            for put in reversed(self.seen)
            if put.topic == topic
            and key in put.keys
            and put.is_indexed
            and begin_ms <= put.store_ms <= end_ms
        ][:max_count]
        found = self.store.query_message(
            topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms
        )
        offsets = [decode(record).physic_offset for record in found]
        assert offsets == [put.physic_offset for put in wanted], (topic, key)

    def check_time(self, topic: str, queue_id: int, timestamp_ms: int) -> None:
        """Compare a queue's first offset at or after a time, and that message's store time."""
        puts = self.queue(topic, queue_id)
        after = [put for put in puts if put.store_ms >= timestamp_ms]
        offset = offset_by_time(self.store, topic, queue_id, timestamp_ms)
        if after:
            assert offset == after[0].queue_offset
            found = store_time_of(self.store, topic, queue_id, offset)
            assert found == after[0].store_ms
        elif puts:
            assert offset == puts[-1].offset_in_queue + 1
            assert store_time_of(self.store, topic, queue_id, offset) == -1

    def check_all(
        self, topics: Iterable[str], queue_ids: Sequence[int], keys: Sequence[str]
    ) -> None:
        """Read every queue from its start to its end, and look up every key."""
        self.dispatch()
        assert self.reput.reput_offset == self.store.commit_log.max_offset
        for topic in topics:
            for queue_id in queue_ids:
                puts = self.queue(topic, queue_id)
                start = puts[0].offset_in_queue if puts else 0
                self.check_get(topic, queue_id, start, 1_000, None)
            for key in keys:
                self.check_query(topic, key, 1_000, 0, 2**60)
        for put in self.seen:
            self.check_record(put)


def run(call: Callable[[], Awaitable[T]]) -> T:
    """Run an async function on a clock that does not wait."""
    return trio.run(call, clock=trio.testing.MockClock(autojump_threshold=0))


def message_of(
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    tags: str | None = None,
    uniq: str | None = None,
    keys: Sequence[str] = (),
    sys_flag: int = 0,
) -> Message:
    """Return a message with the properties that dispatch uses."""
    properties = {}
    if tags is not None:
        properties[PROPERTY_TAGS] = tags
    if uniq is not None:
        properties[PROPERTY_UNIQ_KEY] = uniq
    if keys:
        properties[PROPERTY_KEYS] = " ".join(keys)
    return Message(topic, body, queue_id=queue_id, properties=properties, sys_flag=sys_flag)


assert FILE_SIZE > 10 * BLANK_SIZE_MIN

"""Writes the golden stores: hastore's own writers, on a disk in memory, at the recorded times.

The log is a master's: each message goes through ``append_message`` or ``append_batch`` while the
clock shows the recorded time, so offsets, queue offsets, rolls and BLANK records are hastore's.  A
message whose broker had an IPv6 address is encoded as by such a broker.  The replica's log is a
slave's: it appends the frames of the HA session.  Consume queues and index come from a node's
dispatch.  ``abort``, ``checkpoint`` and the zeroed range of a torn log are written by hand.
"""

import struct
from functools import cache

import attrs

from hastore.config import StoreConfig
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.record_scan import scan_records
from hastore.message import Message
from hastore.store.commit_log import CommitLog
from hastore.store.index.service import IndexService
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.record import layout, record_check
from hastore.store.record.message_encoder import MessageEncoder
from hastore.store.record.topic_queue_table import TopicQueues
from tests.golden import messages, recorded
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.store.index_stores import CheckpointStandIn
from tests.support.store.open_log import DATA_DIR, append, append_data, close

FILE_SIZE = 65_536
QUEUE_FILE_SIZE = 1_000
HASH_SLOTS = 200
INDEX_ENTRIES = 400
CHECKPOINT_SIZE = 4_096
DIRECTORIES = ("commitlog", "consumequeue", "index")
FIGURES = recorded.load()


@attrs.define(eq=False)
class RecordedClock(FakeClock):
    """A clock at the recorded times; ``names`` are those of the index files."""

    names: list[str] = attrs.field(factory=list)

    def local_name(self, ms):
        return self.names.pop(0)


@attrs.frozen(kw_only=True)
class Put:
    """One message, and its position in the store."""

    message: Message
    physic_offset: int
    queue_offset: int
    store_timestamp_ms: int
    store_host: tuple[str, int]
    record: bytes

    @property
    def end_offset(self):
        return self.physic_offset + len(self.record)


@attrs.frozen(kw_only=True)
class Store:
    """One store: its files by path, and its messages (the replica has its master's)."""

    files: dict[str, bytes]
    puts: list[Put]


@cache
def store(name):
    """Write one of the seven stores."""
    if name == "replica":
        return _replica()
    if name in FIGURES.zeroed:
        return _torn(name)
    return _master(FIGURES.stores[name])


# -- a master's ----------------------------------------------------------------------------------


def _master(figures):
    disk, clock = FakeDisk(), RecordedClock(names=list(figures.index_files))
    env, config = fake_env(disk, clock), _config(prop_crc=figures.prop_crc)
    log = CommitLog.open(env, config, store_host=messages.STORE_HOST, needs_queue_offsets=True)
    puts = _put_all(log, clock, figures)
    _dispatch(env, config, log, [put.physic_offset for put in puts])
    if figures.killed is None:
        close(log)
    else:
        queue = log.mapped_file_queue  # RocketMQ creates the next file when it begins one
        queue.create_file(queue.files[-1].next_file_offset).close()
        log.close(clean=False)
    return Store(files=_files(disk, figures, puts), puts=puts)


def _config(*, prop_crc):
    return StoreConfig(
        data_dir=DATA_DIR,
        mapped_file_size=FILE_SIZE,
        mapped_file_size_consume_queue=QUEUE_FILE_SIZE,
        max_hash_slot_num=HASH_SLOTS,
        max_index_num=INDEX_ENTRIES,
        append_prop_crc=prop_crc,
    )


def _put_all(log, clock, figures):
    """Put each message at its recorded time; those of the batch in one call."""
    puts, batch, prepared_offset = [], [], 0
    given = messages.messages(figures.ordinary)
    for one, (born_ms, clock.ms) in zip(given, figures.born_and_stored_ms(), strict=True):
        message = attrs.evolve(one.message, born_timestamp_ms=born_ms)
        if one.is_in_batch:
            batch.append(message)
            continue
        if one.ends_transaction:
            message = attrs.evolve(message, prepared_transaction_offset=prepared_offset)
        if one.store_host == messages.STORE_HOST:
            result = append(log, message)
            made = _put(log, message, result.physic_offset, result.queue_offset, clock.ms)
        else:
            made = _put_of_another_host(log, message, one.store_host, clock.ms)
        puts.append(made)
        if message.sys_flag & layout.TRANSACTION_TYPE_MASK == messages.PREPARED:
            prepared_offset = made.physic_offset
    result = append(log, batch)
    for number, (message, offset) in enumerate(zip(batch, result.batch_offsets, strict=True)):
        puts.append(_put(log, message, offset, result.queue_offset + number, clock.ms))
    return puts


def _put(log, message, physic_offset, queue_offset, store_timestamp_ms):
    """Return a put, with its record from the log."""
    data = log.read(physic_offset, log.file_size)
    return Put(
        message=message,
        physic_offset=physic_offset,
        queue_offset=queue_offset,
        store_timestamp_ms=store_timestamp_ms,
        store_host=messages.STORE_HOST,
        record=data[: int.from_bytes(data[:4])],
    )


def _put_of_another_host(log, message, store_host, store_timestamp_ms):
    """Put a message, the first of its queue, as a broker with another address stores it."""
    encoder = MessageEncoder(
        store_host=store_host,
        max_message_size=log._max_message_size,
        append_prop_crc=log._has_prop_crc,
    )
    queues = TopicQueues(message.topic.encode(), encoder.bare_properties)
    physic_offset = log.max_offset
    record = encoder.encode(message, queues, 0, physic_offset, store_timestamp_ms)
    append_data(log, physic_offset, record)
    return attrs.evolve(
        _put(log, message, physic_offset, 0, store_timestamp_ms), store_host=store_host
    )


def _dispatch(env, config, log, offsets):
    """Write consume queues and index of these records as a node that stops cleanly."""
    queues = ConsumeQueueStore.load(env.disk, DATA_DIR, QUEUE_FILE_SIZE)
    index = IndexService.load(env, DATA_DIR, config, CheckpointStandIn(), last_exit_ok=True)
    dispatcher = RecordDispatcher(queues, index, messages.LEVELS)
    for physic_offset in offsets:
        data = log.read(physic_offset, log.file_size)
        scan = scan_records(data, 0, physic_offset, log.file_size, 1, check_crc=True)
        if scan.record_count:
            dispatcher.dispatch_scan(scan, physic_offset)
        else:
            check = record_check.check_record(data, 0, len(data), physic_offset)
            dispatcher.dispatch_record(check, physic_offset)
    while dispatcher.commit_step() is None:
        pass
    queues.close()
    index.close()


# -- the replica's, and torn ones ----------------------------------------------------------------


def _replica():
    """Write a slave's store from the frames, dispatched by reading the log."""
    master = store("replica_master")
    figures = FIGURES.replica
    disk, clock = FakeDisk(), RecordedClock(names=list(figures.index_files))
    env, config = fake_env(disk, clock), _config(prop_crc=False)
    log = CommitLog.open(env, config, store_host=messages.STORE_HOST, needs_queue_offsets=False)
    for physic_offset, body in frames():
        append_data(log, physic_offset, body)
    _dispatch(env, config, log, [put.physic_offset for put in master.puts])
    close(log)
    return Store(files=_files(disk, figures, master.puts), puts=master.puts)


def frames():
    """Return the frames of the HA session with bytes: one for each append, one for each BLANK."""
    master = store("replica_master")
    log = commit_log(master)
    calls = [put.physic_offset for put in master.puts[: 1 - messages.BATCH_COUNT]]
    starts = sorted([*calls, *(offset for offset, _ in blanks(master))])
    ends = [*starts[1:], master.puts[-1].end_offset]
    return [(start, log[start:end]) for start, end in zip(starts, ends, strict=True)]


def _torn(name):
    """Return the crashed store with a range of its log zeroed."""
    crashed = store("crashed")
    begin, end = FIGURES.zeroed[name]
    start = begin - begin % FILE_SIZE
    path = f"commitlog/{file_name(start)}"
    image = bytearray(crashed.files[path])
    image[begin - start : end - start] = bytes(end - begin)
    return attrs.evolve(crashed, files=crashed.files | {path: bytes(image)})


# -- files ---------------------------------------------------------------------------------------


def _files(disk, figures, puts):
    """Return the files that RocketMQ left of such a store."""
    files = {
        path.removeprefix(f"{DATA_DIR}/"): data
        for path, data in disk.files(f"{DATA_DIR}/").items()
        if path.removeprefix(f"{DATA_DIR}/").partition("/")[0] in DIRECTORIES
    }
    killed = getattr(figures, "killed", None)
    if killed is not None:
        files["abort"] = str(killed).encode()
    files["checkpoint"] = _checkpoint(figures.checkpoint, puts)
    return files | {"lock": b"lock", "abort.bak": b""}


def _checkpoint(figures, puts):
    """Return RocketMQ's checkpoint; hastore's would have its seals after the numbers."""
    times = [
        0 if number is None else puts[number].store_timestamp_ms
        for number in (figures.physic, figures.logics, figures.index)
    ]
    return struct.pack(">5q", *times, 0, figures.confirm_offset).ljust(CHECKPOINT_SIZE, b"\0")


def commit_log(store):
    """Return the bytes of all its log files."""
    return b"".join(
        data for path, data in sorted(store.files.items()) if path.startswith("commitlog/")
    )


def blanks(store):
    """Return the (offset, size) of each filler, from a record's end to the end of its file."""
    following = [put.physic_offset for put in store.puts[1:]]
    return [
        (put.end_offset, next_offset - put.end_offset)
        for put, next_offset in zip(store.puts, following, strict=False)
        if next_offset != put.end_offset
    ]

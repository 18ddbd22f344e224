"""A start after a crash: three files of 1 GiB, consume queue and index, killed near their end.

The bound is the rate at which a bare loop reads one of those files and compares each record's body
checksum: it checks nothing else, and creates no objects.  A start may take twice as long as that
loop takes for one file, whatever the log's length.  The checkpoint is a second old and says, as it
does in real use, that records of three more seconds may not have been dispatched.

Both find their files in the page cache, which makes the bound harder: a disk slows both.
"""

from __future__ import annotations

import gc
import os
import struct
import time
from pathlib import Path

import attrs
from isal import isal_zlib

from hastore.config import GIB, StoreConfig
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.record_scan import scan_records
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import AppendMessageStatus
from hastore.store.message_store import MessageStore
from hastore.store.record.delay_levels import DelayLevels
from tests.bench.nodes import BODY, TOPIC, scratch
from tests.support.bench.bound import Bound, Row

PAIRS = 3
FILES = 3
QUEUES = 8
MESSAGES_A_SECOND = 20_000
LEFT_OUT = 0.02  # of the last file: it is not quite full
_HEAD = struct.Struct(">iii72xi")
_MESSAGE_MAGIC = -626843481
_CHUNK_SIZE = 1024 * 1024

BOUND = Bound(
    key="recovery",
    work=f"start after a crash, {FILES} files of 1 GiB",
    text="≥ 0.5 × bare reading of one",
    limit=0.5,
    at_least=True,
)


@attrs.define(eq=False)
class SlowClock:
    """A wall clock that messages advance: a log written at once looks like one in real use."""

    ms: float = 1_700_000_000_000.0

    def now_s(self) -> float:
        return self.ms / 1000

    def now_ms(self) -> int:
        return int(self.ms)

    boot_s = staticmethod(real_env().wall_clock.boot_s)
    local_name = staticmethod(real_env().wall_clock.local_name)


@attrs.frozen(kw_only=True)
class Crashed:
    """A store that was killed, and the files that are restored before each start."""

    path: Path
    file_size: int
    files: dict[str, bytes]

    def again(self) -> None:
        for name, data in self.files.items():
            (self.path / name).write_bytes(data)

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(data_dir=str(self.path), mapped_file_size=self.file_size)


def bench_recovery(directory: Path) -> Row:
    """Measure bytes of one file a second."""
    pairs = []
    notes = ""
    with scratch(directory, "recovery") as path:
        crashed = build(path)
        for _ in range(PAIRS):
            crashed.again()
            took_s, notes = start_s(crashed)
            bare = bare_s(path / "commitlog" / f"{0:020d}")
            mib = crashed.file_size / 1024 / 1024
            pairs.append((mib / took_s, mib / bare))
    return Row.of_pairs(BOUND, pairs, "MiB/s", note=notes)


def build(path: Path, file_size: int = GIB, clock: SlowClock | None = None) -> Crashed:
    """Write the store as a master does, and leave it as after a kill."""
    clock = clock or SlowClock()
    env = attrs.evolve(real_env(), wall_clock=clock)
    config = StoreConfig(data_dir=str(path), mapped_file_size=file_size)
    store = MessageStore.open(
        env, config, store_host=("127.0.0.1", 10911), needs_queue_offsets=True
    )
    log, checkpoint = store.commit_log, store.checkpoint
    end = int((FILES - LEFT_OUT) * file_size)
    dispatcher = RecordDispatcher(
        store.consume_queues, store.index_service, DelayLevels.parse(config.message_delay_level)
    )
    messages = [
        Message(TOPIC, BODY, queue_id=queue_id, properties={"UNIQ_KEY": f"{queue_id:032X}"})
        for queue_id in range(QUEUES)
    ]
    number = dispatched = 0
    is_flushed = False
    while log.max_offset < end:
        for _ in range(1_000):
            message = messages[number % QUEUES]
            result = log.append_message(message)
            if result.status is AppendMessageStatus.END_OF_FILE:
                queue = log.mapped_file_queue
                wanted = queue.wanted_file_offset()
                assert wanted is not None
                queue.offer(queue.create_file(wanted))
                log.append_message(message)
            number += 1
        clock.ms += 1_000 / MESSAGES_A_SECOND * 1_000
        while dispatched < log.max_offset:
            data = log.read(dispatched, log.max_offset - dispatched)  # to a file's end at most
            scan = scan_records(data, 0, dispatched, file_size, 1_000, check_crc=False)
            if scan.record_count:
                dispatcher.dispatch_scan(scan, dispatched)
                dispatched += scan.position
            else:  # the filler at a file's end
                dispatched += file_size - dispatched % file_size
        while dispatcher.commit_step() is None:
            pass
        a_second = MESSAGES_A_SECOND * (len(BODY) + 150)
        if not is_flushed and log.max_offset > end - a_second:
            is_flushed = True
            _flush(store, clock.now_ms())
    kept = {"checkpoint": (path / "checkpoint").read_bytes(), "abort": b"1"}
    assert checkpoint.is_own
    os.sync()  # writing back dirty pages is no part of a start
    store.close(clean=False)
    return Crashed(path=path, file_size=file_size, files=kept)


def _flush(store: MessageStore, now_ms: int) -> None:
    """Do what the flush services do, and write the checkpoint."""
    log = store.commit_log
    targets = log.flush_targets()
    for mapped_file, _ in targets:
        mapped_file.disk_file.sync()
    log.mark_flushed(targets)
    while files := store.consume_queues.dirty_files():
        for file in files:
            file.sync()
        store.consume_queues.mark_flushed(files)
    if store.index_service is not None:
        for _ in range(2):  # the second marks what the first has made durable
            index_files = store.index_service.dirty_files()
            for index_file in index_files:
                index_file.sync()
            store.index_service.mark_flushed(index_files)
    checkpoint = store.checkpoint
    checkpoint.flushed_offset = log.flushed_offset
    checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = now_ms
    checkpoint.flush()


def start_s(crashed: Crashed) -> tuple[float, str]:
    """Open the store; return the seconds, and a note about the work done."""
    gc.collect()
    began = time.perf_counter()
    store = MessageStore.open(
        real_env(), crashed.config, store_host=("127.0.0.1", 10911), needs_queue_offsets=True
    )
    took_s = time.perf_counter() - began
    report = store.commit_log.load_report
    assert not report.last_exit_ok
    assert report.trimmed is None
    mib = 1024 * 1024
    notes = (
        f"{took_s:.2f} s for {report.records:,} records of {report.files} files,"
        f" {report.written_again / mib:.0f} MiB written again,"
        f" {(report.max_offset - store.redispatch_from) / mib:.0f} MiB left to dispatch"
    )
    store.close(clean=False)
    return took_s, notes


def bare_s(path: Path) -> float:
    """Read a file and compare each body's checksum; return the seconds."""
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    crc32, unpack = isal_zlib.crc32, _HEAD.unpack_from
    gc.collect()
    began = time.perf_counter()
    position = records = 0
    while position < size:
        data = os.pread(descriptor, _CHUNK_SIZE, position)
        view = memoryview(data)
        at, available = 0, len(data)
        while at + 91 <= available:
            record_size, magic, stored, body_size = unpack(data, at)
            end = at + record_size
            if magic != _MESSAGE_MAGIC or end > available:
                break
            assert crc32(view[at + 88 : at + 88 + body_size]) & 0x7FFFFFFF == stored
            at = end
            records += 1
        if not at:
            break  # the BLANK
        position += at
    took_s = time.perf_counter() - began
    os.close(descriptor)
    assert records > 0
    assert position > 0.9 * size
    return took_s

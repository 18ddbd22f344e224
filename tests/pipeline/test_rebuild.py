"""Rebuilt consume queues and indexes equal RocketMQ's files, and those of a node's dispatch."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from hastore.columnar.log_range import Bounds, find_ranges, group_ranges
from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError, LossRefusedError, NotAStoreError, StoreLockedError
from hastore.message import Message
from hastore.pipeline.rebuild import job as rebuild_job
from hastore.pipeline.rebuild.index import (
    BucketKeys,
    KeyChunk,
    plan_index,
    write_index_file,
)
from hastore.pipeline.rebuild.job import RebuildConflictError, rebuild
from hastore.pipeline.rebuild.records import (
    KEY,
    KEYS,
    NO_RECORD,
    RECORDS,
    ROWS,
    SET_ASIDE,
    UNITS,
    RebuildRecords,
)
from hastore.pipeline.rebuild.sink import keep_queues, write_queues
from hastore.store.index.layout import IndexLayout
from hastore.store.queue.directory import find_queues
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.layout import INNER_BATCH_FLAG
from hastore.store.store_lock import StoreLock
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.rebuild import rebuild as rebuild_here
from hastore.topic import SCHEDULE_TOPIC
from hastore_cli.main import main
from tests.support.store.log_builder import FILE_SIZE, FIRST_MS, LogBuilder
from tests.support.store.message_store_model import CONFIG, StorePair

pytestmark = pytest.mark.xdist_group("spark")
ENV = real_env()
DISK = ENV.disk
GOLDEN_CONFIG = StoreConfig(
    data_dir=".", mapped_file_size_consume_queue=1000, max_hash_slot_num=200, max_index_num=400
)
GOLDEN_OPTIONS = {
    "HASTORE_STORE_CONSUME_QUEUE_FILE_SIZE": "1000B",
    "HASTORE_STORE_INDEX_SLOTS": "200",
    "HASTORE_STORE_INDEX_ENTRIES": "400",
}
LEVELS = DelayLevels.parse(CONFIG.message_delay_level)


class CountingDisk:
    """A disk that remembers which directories were listed."""

    def __init__(self, disk):
        self._disk = disk
        self.listed = []

    def __getattr__(self, name):
        """Return what the disk does."""
        return getattr(self._disk, name)

    def list_dir(self, path):
        """List a directory, and remember that."""
        self.listed.append(path)
        return self._disk.list_dir(path)


def contents(path):
    """Return consume queue files by name, and index files in order (their names are times)."""
    queues = path / "consumequeue"
    found = {
        str(file.relative_to(queues)): file.read_bytes()
        for file in sorted(queues.rglob("*"))
        if file.is_file()
    }
    return found, [file.read_bytes() for file in sorted((path / "index").glob("*"))]


# -- on Spark --------------------------------------------------------------------------------------


def test_golden_log_is_rebuilt_byte_for_byte_as_by_rocketmq(spark, golden, tmp_path):
    """All consume queue and index files are equal, and there are no other files."""
    result = rebuild(spark, str(golden / "clean"), config=GOLDEN_CONFIG, out=str(tmp_path / "d"))
    assert contents(tmp_path / "d") == contents(golden / "clean")
    names = sorted(entry.name for entry in (tmp_path / "d").iterdir())
    assert names == ["consumequeue", "index", "lock"]
    assert not result.found
    assert result.summary["index_files"] == len(contents(golden / "clean")[1])
    assert sum(row["units"] for row in result.rows) == result.summary["units"]


def test_random_stores_are_rebuilt_as_dispatch_wrote_them(spark, tmp_path):
    """Transactions, delays, tags, keys, batches and many files, the first of them expired.

    The store is rebuilt in place, with overwritten queues and a lost index file.
    """
    for seed in (1, 2):
        pair = random_pair(random.Random(seed), expires=seed > 1)
        store = tmp_path / str(seed)
        dump(pair.disk, store)
        wanted = wanted_of(store, expires=seed > 1)
        assert len(wanted[1]) > 2
        for file in list((store / "consumequeue").rglob("0*"))[::2]:
            if file.is_file():
                file.write_bytes(b"\xff" * len(file.read_bytes()))
        next((store / "index").iterdir()).unlink()
        rebuild(spark, str(store), config=CONFIG)
        assert contents(store) == wanted
        assert not list(store.glob("*.old-*")) + list(store.glob("rebuild.tmp"))


@pytest.fixture
def golden_options(monkeypatch):
    """Set the sizes of the golden stores in the environment, as for a node."""
    for name, value in GOLDEN_OPTIONS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("spark", "golden_options")
def test_command_rebuilds_one_part_or_both(golden, golden_copy, capsys, tmp_path):
    """It refuses to replace existing files without --force."""
    store = golden_copy("clean")
    (store / "consumequeue" / "mine").write_text("kept")
    names = {file.name for file in (store / "index").iterdir()}
    command = ["pipeline", "run", "rebuild", str(store)]
    assert main([*command, "--index", "-o", "json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["keys"] == 658
    assert "queues" not in document["summary"]
    assert (store / "consumequeue" / "mine").read_text() == "kept"
    assert names.isdisjoint(file.name for file in (store / "index").iterdir())
    assert contents(store)[1] == contents(golden / "clean")[1]

    out = ["--out", str(tmp_path / "out")]
    assert main([*command, "--consumequeue", *out]) == 0
    assert "wrote" in capsys.readouterr().out
    assert main([*command, *out]) == 6
    stderr = capsys.readouterr().err
    assert "consumequeue is there already" in stderr
    assert "--force" in stderr
    assert main([*command, *out, "--force"]) == 0
    assert contents(tmp_path / "out") == contents(golden / "clean")


def test_damage_is_skipped_and_counted(spark, tmp_path):
    """Without queues the records from the next file on are rebuilt, as by ``log rebuild``."""
    log = LogBuilder().fill(60)
    data = log.flipped(log.offsets[4] + 4)
    data[log.offsets[30] + 100] ^= 1  # a body: checksums are not verified
    store = log.write(tmp_path / "d", data=data)
    out = str(tmp_path / "out")
    result = rebuild(spark, str(store), config=CONFIG, out=out, accept_loss=True)
    assert result.found
    next_file = next(n for n, at in enumerate(log.offsets) if at >= log.file_size)
    kept = 60 - (next_file - 4)
    assert (result.summary["messages"], result.summary["unreadable"]) == (kept, 1)
    report = rebuild_here(
        ENV, str(store), CONFIG, consume_queues=True, index=True, accept_loss=True
    )
    assert (report.records, report.unreadable) == (kept, 1)
    assert contents(tmp_path / "out") == contents(store)


def test_failed_task_changes_nothing(spark, golden_copy, monkeypatch):
    """The old files stay, no other files remain, and the next run succeeds."""
    store = golden_copy("clean")
    wanted = contents(store)
    write_rows = rebuild_job.write_rows

    def broken(rows, options):
        import attrs

        write_rows(rows, attrs.evolve(options, work="/proc/none"))

    monkeypatch.setattr(rebuild_job, "write_rows", broken)
    before = sorted(entry.name for entry in store.iterdir())
    with pytest.raises(Exception, match="/proc/none"):
        rebuild(spark, str(store), config=GOLDEN_CONFIG)
    assert contents(store) == wanted
    assert sorted(entry.name for entry in store.iterdir()) == before
    monkeypatch.setattr(rebuild_job, "write_rows", write_rows)
    rebuild(spark, str(store), config=GOLDEN_CONFIG)
    assert contents(store) == wanted


# -- without Spark ---------------------------------------------------------------------------------


def random_pair(generator, *, expires):
    """Return a store with random messages that was stopped cleanly, so dispatch is complete."""
    pair = StorePair()
    tags = (None, "red", "", "ä", "x" * 40)
    for number in range(generator.randrange(60, 120)):
        pair.clock.ms += generator.choice([0, 1, 900, 70_000])
        topic = generator.choice(["orders", "orders", "x", SCHEDULE_TOPIC, "订单"])
        properties = {}
        if generator.random() < 0.7:
            properties["UNIQ_KEY"] = f"U{number}"
        if generator.random() < 0.5:
            properties["KEYS"] = generator.choice(["k", "a b  c", " ", f"key-{number}", "日 本"])
        if (tag := generator.choice(tags)) is not None:
            properties["TAGS"] = tag
        if topic == SCHEDULE_TOPIC:
            properties["DELAY"] = generator.choice(["3", "18", "99", "0", "x"])
        properties = {name: value for name, value in properties.items() if value}
        message = Message(
            topic,
            generator.randbytes(generator.choice([0, 10, 300])),
            queue_id=generator.randrange(3),
            sys_flag=generator.choice([0, 0, 0, 0x4, 0x8, 0xC]),
            properties=properties,
        )
        pair.put([message] * (3 if message.sys_flag == 0 and generator.random() < 0.2 else 1))
        if expires and number == 50:
            pair.dispatch()
            pair.flush_queues()
            pair.flush_log()
            pair.expire()
    pair.stop()
    pair.store.close(clean=True)
    return pair


def wanted_of(store, *, expires):
    """Return what dispatch wrote; after expiry, what ``log rebuild`` writes, with blanks."""
    if expires:
        rebuild_here(ENV, str(store), CONFIG, consume_queues=True, index=True)
    return contents(store)


def dump(disk, path):
    """Write the store of a fake disk as real files."""
    for name, data in disk.files("/d/").items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def test_queues_are_listed_once_for_all_damaged_ranges_of_a_log():
    """What confirms records behind damage is read once a task, not once for each range."""
    log = LogBuilder().fill(120)
    data = bytearray(log.data)
    for start in range(0, len(data) - FILE_SIZE, FILE_SIZE):
        damaged = next(at for at in log.offsets if at > start)
        data[damaged : damaged + 8] = b"\xff" * 8
    disk = CountingDisk(log.on_disk(data))
    records = RebuildRecords(disk, find_log(disk, "/d"), LEVELS, with_units=True, with_keys=True)
    ranges = find_ranges(disk, "/d", Bounds())
    batches = [batch for log_range in ranges for batch in records.read(log_range)]
    kinds = [row["kind"] for batch in batches for row in batch.to_pylist()]
    assert kinds.count(SET_ASIDE) >= 3
    assert disk.listed.count("/d/consumequeue") == 1


def build_in_process(store, out, config, *, tasks, seed=0):
    """Do the job with lists instead of Spark; return records, unreadable places and keys."""
    log = find_log(DISK, str(store))
    records = RebuildRecords(DISK, log, LEVELS, with_units=True, with_keys=True)
    groups = group_ranges(DISK, find_ranges(DISK, str(store), Bounds()), tasks)
    batches = [b for group in groups for log_range in group for b in records.read(log_range)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    random.Random(seed).shuffle(rows)  # like Spark's shuffle
    found, units, keyed, none = (
        sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["physic_offset"])
        for kind in (RECORDS, UNITS, KEYS, NO_RECORD)
    )
    units.sort(key=lambda row: (row["topic"], row["queue_id"], row["physic_offset"]))
    file_size = config.mapped_file_size_consume_queue
    batch = [pa.RecordBatch.from_pylist(units, ROWS)] if units else []
    write_queues(DISK, str(out), file_size, iter(batch))
    if log.min_offset:
        old = find_queues(DISK, f"{store}/consumequeue", file_size)
        keep_queues(DISK, f"{store}/consumequeue", f"{out}/consumequeue", old)
    size = 1000  # of a bucket
    counts = {}
    for row in keyed:
        bucket = row["physic_offset"] // size
        counts[bucket] = counts.get(bucket, 0) + row["count"]
    layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
    last = max((row["last_offset"] for row in found), default=-1)
    plan = plan_index(
        ENV,
        layout,
        [BucketKeys(*pair) for pair in sorted(counts.items())],
        has_records=bool(found),
        ends_without_keys=last > max((row["last_offset"] for row in keyed), default=-1),
    )
    DISK.make_dirs(f"{out}/index")
    for number, name in enumerate(plan.names):
        own = {s.bucket: s.first_number for s in plan.shares if s.file_number == number}
        buckets = ((row["physic_offset"] // size, row["data"]) for row in keyed)
        of_file = (
            KeyChunk(bucket, own[bucket], np.frombuffer(data, KEY).tolist())
            for bucket, data in buckets
            if bucket in own
        )
        write_index_file(DISK, f"{out}/index/{name}", layout, number, of_file)
    assert list(plan.names) == sorted(set(plan.names))
    return sum(row["count"] for row in found), sum(row["count"] for row in none), plan.keys


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica", "replica_master", "crashed"])
def test_golden_logs_are_rebuilt_in_process(golden, tmp_path, name):
    """It tests all golden logs, in one task and in seven."""
    for tasks in (1, 7):
        out = tmp_path / str(tasks)
        build_in_process(golden / name, out, GOLDEN_CONFIG, tasks=tasks)
        assert contents(out) == contents(golden / name)


def test_random_stores_are_rebuilt_in_process(tmp_path):
    """There are more of them than with Spark, in any number of tasks."""
    for seed in range(100, 110):
        generator = random.Random(seed)
        store, expires = tmp_path / str(seed), generator.random() < 0.5
        dump(random_pair(generator, expires=expires).disk, store)
        out = tmp_path / f"{seed}.out"
        build_in_process(store, out, CONFIG, tasks=generator.randrange(1, 20), seed=seed)
        assert contents(out) == wanted_of(store, expires=expires), seed


def test_random_damaged_logs_equal_log_rebuild(tmp_path):
    """They have gaps, repeated and absurd queue offsets, and random bytes."""
    for seed in range(20):
        generator = random.Random(seed)
        log = LogBuilder(min_offset=generator.choice([0, 8192]))
        for number in range(generator.randrange(1, 120)):
            fields = {"store_timestamp_ms": FIRST_MS + number * generator.choice([0, 7, 9000])}
            if generator.random() < 0.1:
                start = generator.choice([0, 3, 200, 2_000_000, -1, 2**40])
                fields["queue_offset"] = start + number
            if generator.random() < 0.1:
                fields["sys_flag"] = INNER_BATCH_FLAG
            key = generator.choice(["k", "a b", "", "\udcff\udcfe", f"u{number}"])
            text = f"KEYS\x01{key}\x02TAGS\x01{generator.choice(['', 'T', 'ü'])}\x02"
            raw = text.encode(errors="surrogateescape")
            topic = generator.choice(["t", "u", "\udcff", "a/b", SCHEDULE_TOPIC])
            log.add(
                generator.randbytes(generator.randrange(200)),
                topic=topic,
                queue_id=generator.choice([0, 1, 1, -1]),
                properties_raw=raw,
                **fields,
            )
        data = bytearray(log.data)
        for _ in range(generator.randrange(4)):
            at, size = generator.randrange(len(data)), generator.choice([1, 4, 100])
            data[at : at + size] = generator.choice([generator.randbytes(size), bytes(size)])
        store = log.write(tmp_path / str(seed), data=data[: len(log.data)])
        out = tmp_path / f"{seed}.out"
        if generator.random() < 0.2 and len(list((store / "commitlog").iterdir())) > 2:
            sorted((store / "commitlog").iterdir())[1].unlink()
        found = build_in_process(store, out, CONFIG, tasks=generator.randrange(1, 9))
        report = rebuild_here(
            ENV, str(store), CONFIG, consume_queues=True, index=True, accept_loss=True
        )
        assert found == (report.records, report.unreadable, report.keys), seed
        assert contents(out) == contents(store), seed


@pytest.mark.parametrize(
    ("keys", "ends_without_keys", "files"),
    [(0, False, 1), (0, True, 1), (9, False, 1), (10, False, 1), (10, True, 2), (21, True, 3)],
)
def test_plan_has_enough_index_files(keys, ends_without_keys, files):
    """At least one; after a full one the next record begins another, even without a key."""
    plan = plan_index(
        ENV,
        IndexLayout(5, 11),
        [BucketKeys(0, keys)],
        has_records=True,
        ends_without_keys=ends_without_keys,
    )
    assert len(plan.names) == files
    none = plan_index(ENV, IndexLayout(5, 11), [], has_records=False, ends_without_keys=False)
    assert none.names == ()


def test_bucket_has_a_share_in_every_file_of_its_keys():
    """If its last key fills a file, it has a share in the next file, too."""
    counts = [BucketKeys(0, 5), BucketKeys(3, 25), BucketKeys(4, 10), BucketKeys(9, 0)]
    plan = plan_index(ENV, IndexLayout(5, 11), counts, has_records=True, ends_without_keys=True)
    shares = [(share.bucket, share.file_number, share.first_number) for share in plan.shares]
    assert shares == [
        (0, 0, 0),
        (3, 0, 5), (3, 1, 5), (3, 2, 5), (3, 3, 5),
        (4, 3, 30), (4, 4, 30),
    ]  # fmt: skip
    assert len(plan.names) == 5


def test_bad_input_is_refused_before_spark_is_used(tmp_path):
    """A running node, no store, a log without a store, or nothing to build: nothing is written."""
    store = LogBuilder().fill(5).write(tmp_path / "d")
    with pytest.raises(NotAStoreError, match="no such directory"):
        rebuild(None, str(tmp_path / "none"), out=str(tmp_path / "out"))
    with pytest.raises(NotAStoreError, match="without a store around it"):
        rebuild(None, str(store / "commitlog"))
    with pytest.raises(ConfigError, match="nothing to build"):
        rebuild(None, str(store), consume_queues=False, index=False)
    assert not (tmp_path / "out").exists()
    lock = StoreLock.take(DISK, str(store))
    with pytest.raises(StoreLockedError):
        rebuild(None, str(store))
    lock.release(clean=False)
    (tmp_path / "out" / "index").mkdir(parents=True)
    (tmp_path / "out" / "index" / "20260101000000000").write_text("mine")
    with pytest.raises(RebuildConflictError, match="index is there already") as caught:
        rebuild(None, str(store), out=str(tmp_path / "out"))
    assert caught.value.exit_code == 6
    assert (tmp_path / "out" / "index" / "20260101000000000").read_text() == "mine"


def test_unconfirmed_records_are_left_out_only_on_request(spark, tmp_path):
    """Without --accept-loss nothing changes, and the job counts what `log rebuild` counts."""
    builder = LogBuilder(file_size=1 << 16).fill(3).plant().fill(2)
    around = builder.offsets[3]
    data = builder.data[:around] + b"\xff" * 8 + builder.data[around + 8 :]
    store = builder.write(tmp_path / "D", data=data)
    with pytest.raises(LossRefusedError):
        rebuild(spark, str(store))
    assert sorted(entry.name for entry in store.iterdir()) == ["commitlog", "lock"]
    result = rebuild(spark, str(store), accept_loss=True)
    config = StoreConfig(data_dir=str(store))
    report = rebuild_here(
        ENV, str(store), config, consume_queues=True, index=True, accept_loss=True
    )
    assert report.set_aside.records > 3
    assert result.summary["unconfirmed_records"] == report.set_aside.records
    assert result.summary["set_aside_bytes"] == report.set_aside.size

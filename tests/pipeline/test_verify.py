"""`verify` checks many stores at once, with the same findings as `hastore log verify`."""

import collections
import logging
import random

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import NotAStoreError
from hastore.pipeline.job import ROWS_MAX
from hastore.pipeline.verify.job import COLUMNS, verify
from hastore.store.queue.deleted_topics import store_deleted
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from hastore.store.tools.rebuild import rebuild
from hastore.wire.config_tables import DeletedTopic
from tests.pipeline.damaged_stores import Damager, copy_store, flip
from tests.support.store.log_builder import LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
DISK = real_env().disk
GOLDEN = ["clean", "crashed", "propcrc", "replica", "replica_master"]
TORN = ["crashed_torn", "crashed_torn_props"]
CONFIG = StoreConfig(
    data_dir="-", mapped_file_size_consume_queue=1000, max_hash_slot_num=200, max_index_num=400
)
COPIES = 20
# The checksum of such a record is wrong, so units and keys are not compared with it.
BAD_CHECKSUMS = {"bad-body-crc", "bad-prop-crc"}


def findings_of(path):
    """Return all written findings, by store."""
    found = collections.defaultdict(list)
    table = pyarrow.dataset.dataset(path, exclude_invalid_files=False).to_table()
    for row in table.to_pylist():
        found[row["store"]].append(row)
    return found


def places(rows):
    return {(row["severity"], row["kind"], row["offset"]) for row in rows}


def log_verify_findings(store):
    """Return what ``hastore log verify`` finds, without what it derives from bad checksums."""
    log = find_log(DISK, store)
    own, derived = verify_log(DISK, log).findings, verify_derived(DISK, store, log, CONFIG).findings
    bad_offsets = {finding.physic_offset for finding in own if finding.kind in BAD_CHECKSUMS}
    kept = [finding for finding in derived if finding.physic_offset not in bad_offsets]
    return {(f.severity.value, f.kind, f.physic_offset) for f in (*own, *kept)}


@pytest.fixture(scope="module")
def checked(spark, golden, tmp_path_factory):
    """Run one job over golden stores and damaged copies; return its result, findings and copies."""
    folder = tmp_path_factory.mktemp("verify")
    damager, chosen = Damager(4), random.Random(4)
    kinds = damager.names()
    copies = {}
    for number in range(COPIES):
        how = kinds[number % len(kinds)]
        name = "clean" if how == "filler" else chosen.choice(GOLDEN)
        store = copy_store(golden / name, folder / f"{number:02}-{how}-{name}")
        damager.damage(store, how)
        copies[str(store)] = how
    stores = [*(str(golden / name) for name in (*GOLDEN, *TORN)), *copies]
    logger = logging.getLogger("hastore")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        result = verify(spark, stores, config=CONFIG, out=str(folder / "out"))
    finally:
        logger.setLevel(level)
    (path,) = result.files
    return result, findings_of(path), copies


def test_golden_stores_have_no_findings(checked, golden):
    """RocketMQ wrote them, and all records, units and keys are in place."""
    _, found, _ = checked
    assert {name: found[str(golden / name)] for name in GOLDEN} == {name: [] for name in GOLDEN}


@pytest.mark.parametrize("name", TORN)
def test_torn_record_of_a_golden_store_is_found(checked, golden, name):
    """A crash has torn it; `log verify` finds the same."""
    _, found, _ = checked
    store = str(golden / name)
    assert places(found[store]) == log_verify_findings(store)
    assert {row["offset"] for row in found[store]} == {331_293}


def test_damaged_copies_have_the_findings_of_log_verify(checked):
    """Severities, kinds and offsets are equal for every kind of damage."""
    _, found, copies = checked
    different = {}
    for store in copies:
        ours, theirs = places(found[store]), log_verify_findings(store)
        if ours != theirs:
            different[store] = (sorted(ours - theirs), sorted(theirs - ours))
    assert not different
    assert sum(bool(found[store]) for store in copies) >= COPIES - 4  # some flips have no effect


def test_tags_and_keys_that_are_not_utf_8_are_no_damage(spark, tmp_path):
    """Unit and index have the hashes of the bytes, not of what replaces them in a table."""
    log = LogBuilder()
    for raw in (
        b"KEYS\x01\xff\x02TAGS\x01\xfe\x02",
        b"KEYS\x01a \xc3\xbc\x02",
        b"UNIQ_KEY\x01\xfd\x02",
    ):
        log.add(properties_raw=raw)
    store = log.write(tmp_path / "d")
    rebuild(real_env(), str(store), CONFIG, consume_queues=True, index=True)
    result = verify(spark, str(store), config=CONFIG)
    assert result.rows == []
    assert log_verify_findings(str(store)) == set()


def test_records_of_a_deleted_topic_need_no_units(spark, tmp_path):
    """Those from before the deletion: a record that came later needs one."""
    log = LogBuilder()
    for _ in range(3):
        log.add(topic="gone")
    store = log.write(tmp_path / "d")
    last = len(log.data) // 3 * 2  # where the third record begins
    deleted = {"gone": DeletedTopic(log_offset=last, next_offsets={0: 2})}
    rebuild(real_env(), str(store), CONFIG, consume_queues=True, index=True, deleted=deleted)
    assert log_verify_findings(str(store))  # nothing says that it is deleted
    store_deleted(DISK, str(store), deleted)
    assert verify(spark, str(store), config=CONFIG).rows == []
    assert log_verify_findings(str(store)) == set()


def test_rows_are_limited_and_counts_are_complete(checked):
    """There are at most ROWS_MAX rows, damage first; the counts cover all findings."""
    result, found, copies = checked
    rows = [row for some in found.values() for row in some]
    counts = collections.Counter(f"{row['severity']} {row['kind']}" for row in rows)
    assert result.found
    assert result.columns == COLUMNS
    assert len(result.rows) == min(len(rows), ROWS_MAX)
    assert result.rows[0]["severity"] == "damage"
    assert result.summary["counts"] == dict(counts)
    assert result.summary["verdict"] == "damaged"
    assert result.summary["stores"] == len(GOLDEN) + len(TORN) + len(copies)
    assert result.summary["units_behind"] >= 2


def covered_bytes(log, name):
    """Yield (record's offset, byte's offset) for every byte that a checksum covers."""
    from hastore.columnar.log_range import Bounds, find_ranges
    from hastore.columnar.range_decoder import RangeDecoder

    columns = ["physic_offset", "size", "body", "topic", "properties_text"]
    for log_range in find_ranges(DISK, str(log), Bounds()):
        for batch in RangeDecoder(DISK, columns).decode(log_range):
            for row in batch.to_pylist():
                begin, end = row["physic_offset"], row["physic_offset"] + row["size"]
                if name != "whole":  # the body CRC, then the body, which is before the topic
                    after_body = len(row["topic"].encode()) + len(row["properties_text"]) + 3
                    yield from ((begin, at) for at in range(begin + 8, begin + 12))
                    begin, end = end - after_body - len(row["body"]), end - after_body
                    yield from ((row["physic_offset"], at) for at in range(begin, end))
                else:
                    yield from ((begin, at) for at in range(begin, end))


@pytest.mark.parametrize("flips", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_finds_each_flipped_byte_at_its_record(spark, golden, tmp_path, flips):
    """Half of them are in records with a checksum over the whole record, half in bodies."""
    chosen = random.Random(200)
    sources = {
        "whole": LogBuilder().fill(25).write(tmp_path / "source"),
        "body": golden / "replica",
    }
    covered = {name: sorted(covered_bytes(path, name)) for name, path in sources.items()}
    expected = {}
    for number in range(flips):
        name = ("whole", "body")[number % 2]
        record, at = chosen.choice(covered[name])
        store = tmp_path / "copies" / f"{number:03}-{name}"
        (store / "commitlog").mkdir(parents=True)
        for file in (sources[name] / "commitlog").iterdir():
            start, size = int(file.name), file.stat().st_size
            copy = store / "commitlog" / file.name
            if not start <= at < start + size:
                copy.hardlink_to(file)  # read only
                continue
            copy.write_bytes(file.read_bytes())
            flip(copy, at - start, 1 << chosen.randrange(8))
        expected[str(store)] = record
    out = str(tmp_path / "out")
    result = verify(spark, str(tmp_path / "copies" / "*"), log_only=True, out=out)
    found = findings_of(result.files[0])
    damage = {
        store: [row["offset"] for row in rows if row["severity"] == "damage"]
        for store, rows in found.items()
    }
    assert damage == {store: [record] for store, record in expected.items()}
    assert result.summary["stores"] == result.summary["damage"] == flips


def test_missing_store_leaves_no_output_directory(tmp_path):
    """It is refused before Spark is used."""
    with pytest.raises(NotAStoreError):
        verify(None, str(tmp_path / "none"), out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()

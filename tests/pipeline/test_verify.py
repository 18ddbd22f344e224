"""`verify` on many stores at once: the findings of `hastore log verify`, and every flipped byte."""

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
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from tests.pipeline.damaged_stores import Damager, copy_store, flip
from tests.support.store.log_builder import LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
DISK = real_env().disk
GOLDEN = ["clean", "crashed", "propcrc", "replica", "replica_master"]
TORN = ["crashed_torn", "crashed_torn_props"]
CONFIG = StoreConfig(
    data_dir="-", mapped_file_size_consume_queue=1000, max_hash_slot_num=200, max_index_num=400
)
COPIES = 30
FLIPS = 200
# A record that no checksum vouches for: what was built from it is not looked at.
UNSOUND = {"bad-body-crc", "bad-prop-crc"}


def findings_of(path):
    """All that was written, by store."""
    found = collections.defaultdict(list)
    table = pyarrow.dataset.dataset(path, exclude_invalid_files=False).to_table()
    for row in table.to_pylist():
        found[row["store"]].append(row)
    return found


def places(rows):
    return {(row["severity"], row["kind"], row["offset"]) for row in rows}


def of_log_verify(store):
    """What ``hastore log verify`` finds, without what it derives from unsound records."""
    log = find_log(DISK, store)
    own, derived = verify_log(DISK, log).findings, verify_derived(DISK, store, log, CONFIG).findings
    unsound = {finding.physic_offset for finding in own if finding.kind in UNSOUND}
    kept = [finding for finding in derived if finding.physic_offset not in unsound]
    return {(f.severity.value, f.kind, f.physic_offset) for f in (*own, *kept)}


@pytest.fixture(scope="module")
def checked(spark, golden, tmp_path_factory):
    """Golden stores and damaged copies in one job: its result, its findings, the copies."""
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


def test_what_rocketmq_wrote_is_whole(checked, golden):
    """Nothing at all is found in the golden stores: records, units and keys are all in place."""
    _, found, _ = checked
    assert {name: found[str(golden / name)] for name in GOLDEN} == {name: [] for name in GOLDEN}


@pytest.mark.parametrize("name", TORN)
def test_torn_golden_stores_have_their_damage(checked, golden, name):
    """The torn record of a crash is named, as by `log verify`."""
    _, found, _ = checked
    store = str(golden / name)
    assert places(found[store]) == of_log_verify(store)
    assert {row["offset"] for row in found[store]} == {331_293}


def test_damaged_copies_have_the_findings_of_log_verify(checked):
    """Same severities, kinds and offsets from both programs, whatever is broken."""
    _, found, copies = checked
    different = {}
    for store, how in copies.items():
        ours, theirs = places(found[store]), of_log_verify(store)
        if how == "index_byte" and ours:
            theirs &= ours  # log verify walks log and index in step, and stumbles once more
        if ours != theirs:
            different[store] = (sorted(ours - theirs), sorted(theirs - ours))
    assert not different
    assert sum(bool(found[store]) for store in copies) >= COPIES - 4  # some byte means nothing


def test_rows_are_few_and_counts_are_all(checked):
    """A person sees at most ROWS_MAX findings, damage first; the counts are those of all."""
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
    """(record's offset, byte's offset) of every byte that a checksum covers."""
    from hastore.columnar.log_range import Bounds, find_ranges
    from hastore.columnar.range_decoder import RangeDecoder

    columns = ["physic_offset", "size", "body", "topic", "properties_text"]
    for log_range in find_ranges(DISK, str(log), Bounds()):
        for batch in RangeDecoder(DISK, columns).decode(log_range):
            for row in batch.to_pylist():
                begin, end = row["physic_offset"], row["physic_offset"] + row["size"]
                if name != "whole":  # the body CRC, then the body, which is before the topic
                    behind = len(row["topic"].encode()) + len(row["properties_text"]) + 3
                    yield from ((begin, at) for at in range(begin + 8, begin + 12))
                    begin, end = end - behind - len(row["body"]), end - behind
                    yield from ((row["physic_offset"], at) for at in range(begin, end))
                else:
                    yield from ((begin, at) for at in range(begin, end))


def test_each_of_200_flipped_bytes_is_found_at_its_record(spark, golden, tmp_path):
    """Half in records with a checksum over all of them, half in bodies; each record is named."""
    chosen = random.Random(200)
    sources = {
        "whole": LogBuilder().fill(25).write(tmp_path / "source"),
        "body": golden / "replica",
    }
    covered = {name: sorted(covered_bytes(path, name)) for name, path in sources.items()}
    expected = {}
    for number in range(FLIPS):
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
    assert result.summary["stores"] == result.summary["damage"] == FLIPS


def test_what_is_no_store_leaves_no_directory_of_findings(tmp_path):
    """It is refused before anything is made, and before Spark is asked."""
    with pytest.raises(NotAStoreError):
        verify(None, str(tmp_path / "none"), out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()

"""The facts of `pipeline run verify`, a column at a time, are those of `log verify`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.record_facts import RecordFacts
from hastore.store.index.layout import key_hash, topic_hash
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.derived_record import derive
from hastore.topic import SCHEDULE_TOPIC
from tests.support.store.log_builder import FIRST_MS, LogBuilder

LEVELS = DelayLevels.parse("1s 5s 10s")
TEXTS = st.text(alphabet="ab \x01\x02äሴ\ufffd\udcff\udcfe", max_size=6)


@st.composite
def records(draw):
    """Return fields of a record that are used for its unit and its keys."""
    names = ("TAGS", "UNIQ_KEY", "KEYS", "DELAY")
    values = [draw(TEXTS), draw(TEXTS), draw(TEXTS), draw(st.sampled_from(["", "0", "3", "x"]))]
    pairs = "".join(f"{name}\x01{value}\x02" for name, value in zip(names, values, strict=True))
    return {
        "topic": draw(st.sampled_from(["t", "ü", SCHEDULE_TOPIC])),
        "sys_flag": draw(st.sampled_from([0, 0x4, 0x8, 0xC, 0x80, 0x88, 0x2])),
        "properties_raw": draw(st.sampled_from([b"", pairs.encode(errors="surrogateescape")])),
    }


def facts_of(disk):
    """Return topic, tags code and hashes of keys of each message of the log in /d."""
    reader = RecordFacts(disk, LEVELS, with_keys=True)
    rows = []
    for log_range in find_ranges(disk, "/d", Bounds()):
        for batch in reader.read(log_range):
            rows += [row for row in batch.to_pylist() if row["topic"] is not None]
    return [(row["topic"], row["tags_code"], row["key_hashes"]) for row in rows]


def derived(number, record):
    """Return the same of one record, as ``log verify`` derives it."""
    found = derive(
        record["topic"],
        sys_flag=record["sys_flag"],
        store_ms=FIRST_MS + number,
        properties=record["properties_raw"],
        delay_levels=LEVELS,
    )
    hashes = [key_hash(topic_hash(found.topic), key) for key in found.keys]
    return found.topic, found.tags_code if found.is_in_queue else None, hashes


@pytest.mark.parametrize("prop_crc", [True, False])
@given(some=st.lists(records(), max_size=8))
def test_units_and_keys_are_those_derived_from_each_record(some, prop_crc):
    """Texts may be anything, even bytes that are not UTF-8."""
    log = LogBuilder(prop_crc=prop_crc)
    for record in some:
        log.add(**record)
    assert facts_of(log.on_disk()) == [derived(*each) for each in enumerate(some)]

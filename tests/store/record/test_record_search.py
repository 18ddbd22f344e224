"""A search for intact records behind damage: it finds what check_record accepts, and is linear.

A body may hold hundreds of heads that each claim the rest of the file.  What a reader reads must
not grow with their number: bytes are counted here, not seconds.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.store.log_rewrite import first_damage
from hastore.store.record import record_check, record_search
from hastore.store.record.layout import MESSAGE_MAGIC_CODE_V2
from hastore.store.record.record_check import RecordKind, check_record, is_cut_off
from hastore.store.record.record_search import RecordSearch
from hastore.store.recovery.tail_scan import scan_rest
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from hastore.store.tools.repair.plan import plan_repair
from tests.support.env.fake_env import fake_env
from tests.support.store.log_builder import LogBuilder
from tests.support.store.open_log import open_log

LOG_SIZE = 1 << 20
HEADS = 711
PASSES_MAX = 8  # how often a reader may read a file, whatever is in it

PROPERTIES = st.sampled_from(
    [b"", b"a\x01b\x02", b"a\x01\0", b"__CRC32#\x01", b"__CRC32#\x010000000000\x02", b"x" * 300]
)


@st.composite
def logs(draw):
    """A log of records of every form, with some bytes changed."""
    builder = LogBuilder(file_size=1 << 16, min_offset=7 << 16, prop_crc=draw(st.booleans()))
    for _ in range(draw(st.integers(1, 6))):
        fields = {"topic": draw(st.sampled_from(["t", "", "t\0", "long" * 25]))}
        if draw(st.booleans()):
            fields |= {"magic": MESSAGE_MAGIC_CODE_V2}
        if draw(st.booleans()):
            fields |= {"born_host": ("::1", 1), "sys_flag": 0x10}
        if draw(st.booleans()):
            fields |= {"properties_raw": draw(PROPERTIES)}
        builder.add(draw(st.binary(max_size=40)), **fields)
    builder.plant(before=draw(st.integers(0, 3)))
    builder.plant_heads(draw(st.integers(0, 5)), stop=builder.min_offset + (1 << 16))
    data = bytearray(builder.data)
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return builder, bytes(data).ljust(draw(st.sampled_from([0, 4_000, 1 << 16])), b"\0")


@given(logs(), st.data())
def test_a_search_finds_what_check_record_accepts(log, data):
    """At every position, for every end and chunk: the two never differ."""
    builder, content = log
    base = builder.min_offset
    begin = data.draw(st.integers(0, min(len(content), len(builder.data)) - 1))
    end = data.draw(st.integers(begin, len(content)))
    chunk = data.draw(st.integers(1, 5_000))
    search = RecordSearch(lambda at, size: content[at : at + size], base, begin, end)
    found = {}
    for start in range(begin, end, chunk):
        for position in search.heads(content[start : start + chunk + 3], start):
            if intact := search.check(position):
                found[position] = intact
    accepted = {}
    for position in range(begin, min(end, len(builder.data))):
        check = check_record(content[position:end], 0, end - position, base + position)
        if check.kind is RecordKind.MESSAGE:
            accepted[position] = (check.size, is_cut_off(check))
    assert found == accepted


# -- the cost ------------------------------------------------------------------------------------


@pytest.fixture
def torn():
    """A log that ends in a message full of heads, torn before its texts."""
    builder = LogBuilder(file_size=LOG_SIZE).fill(3).plant_heads(HEADS, stop=LOG_SIZE)
    return builder, builder.on_disk(builder.data[:-50])


def damaged():
    """A log with the same message, and damage in its size, before other records."""
    builder = LogBuilder(file_size=LOG_SIZE).fill(3)
    builder.plant_heads(HEADS, stop=LOG_SIZE // 2, more=bytes(LOG_SIZE // 2)).fill(2)
    return builder, builder.flipped(builder.offsets[3] + 1, 0x40)


def count_reads(disk):
    """Return a list that gets the size of each read."""
    sizes = []
    disk.after("pread", lambda read: sizes.append(min(read.size, LOG_SIZE - read.position)))
    return sizes


def test_a_torn_end_full_of_heads_is_read_a_few_times(torn):
    """No head ends the log's search, and none is believed."""
    builder, disk = torn
    sizes = count_reads(disk)
    disk_file = disk.open_file(f"/d/commitlog/{0:020d}", writable=False)
    rest = scan_rest(disk_file, 0, builder.offsets[3])
    assert rest.record is None
    assert sum(sizes) <= PASSES_MAX * LOG_SIZE


def test_a_start_reads_a_torn_end_full_of_heads_a_few_times(torn):
    """It trims the end, as it trims any."""
    builder, disk = torn
    sizes = count_reads(disk)
    log = open_log(fake_env(disk), mapped_file_size=LOG_SIZE)
    assert log.max_offset == builder.offsets[3]
    assert sum(sizes) <= PASSES_MAX * LOG_SIZE


def test_a_planned_repair_reads_a_torn_end_full_of_heads_a_few_times(torn):
    """It asks what a start would do with the end."""
    builder, disk = torn
    sizes = count_reads(disk)
    assert plan_repair(disk, "/d").torn_at == builder.offsets[3]
    assert sum(sizes) <= PASSES_MAX * LOG_SIZE


@pytest.mark.parametrize("unconfirmed", [False, True])
def test_a_walk_reads_damage_full_of_heads_a_few_times(unconfirmed):
    """It counts no head as an unconfirmed record."""
    builder, data = damaged()
    disk = builder.on_disk(data)
    sizes = count_reads(disk)
    seen = list(LogWalker(disk, find_log(disk, "/d"), unconfirmed=unconfirmed).walk())
    assert [o for o, check in seen if check.kind is RecordKind.MESSAGE] == [
        *builder.offsets[:3], *builder.offsets[4:]
    ]  # fmt: skip
    assert not any(check.unconfirmed for _, check in seen)
    assert sum(sizes) <= PASSES_MAX * LOG_SIZE


@pytest.fixture
def checksummed(monkeypatch):
    """A list that gets the size of everything whose CRC32 is computed."""
    sizes = []
    crc32 = record_check.body_crc32.__globals__["_crc32"]

    class Counting:
        crc32_combine = staticmethod(record_search.isal_zlib.crc32_combine)

        @staticmethod
        def crc32(data, value=0):
            sizes.append(len(data))
            return crc32(data, value)

    monkeypatch.setattr(record_check, "_crc32", Counting.crc32)
    monkeypatch.setattr(record_search, "isal_zlib", Counting)
    return sizes


def test_a_master_with_damage_full_of_heads_is_compared_in_a_few_passes(checksummed):
    """Both logs have the damage, and differ in a record behind it."""
    builder, masters = damaged()
    own = bytearray(masters)
    own[builder.offsets[-1] + 90] ^= 1
    end = len(masters)
    assert first_damage(bytes(own), bytes(masters), 0, end, LOG_SIZE) is None
    assert sum(checksummed) <= PASSES_MAX * end


def test_a_master_with_intact_and_damaged_plants_is_compared_in_a_few_passes(checksummed):
    """Each planted record is intact, and the bytes after it claim all the rest."""
    builder = LogBuilder(file_size=LOG_SIZE).fill(1)
    at, body = builder.end + 88, b""
    for _ in range(300):
        intact = LogBuilder(file_size=1 << 30, min_offset=at + len(body)).add(b"")
        heads = LogBuilder(file_size=1 << 30, min_offset=intact.end - 88)
        heads.plant_heads(1, stop=LOG_SIZE // 2)
        body += bytes(intact.data) + bytes(heads.data[88:176])
    builder.add(body + bytes(LOG_SIZE // 2)).fill(2)
    masters = bytes(builder.flipped(builder.offsets[1] + 1, 0x40))
    own = bytearray(masters)
    own[builder.offsets[-1] + 90] ^= 1
    assert first_damage(bytes(own), masters, 0, len(masters), LOG_SIZE) is None
    assert sum(checksummed) <= PASSES_MAX * len(masters)

"""A scan reads ordinary records, and leaves all others to its caller (see also tests/native)."""

import struct
from collections import deque
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.dispatch.record_scan import scan_fed_records, scan_records
from hastore.message import Message
from hastore.store.index.layout import PACKED_KEY, key_hash, topic_hash
from hastore.store.queue.unit import UNIT
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.derived_record import derive
from hastore.store.record.layout import position_of
from hastore.store.record.record_check import RecordKind, check_record
from tests.support.store.encoded_records import records_of
from tests.support.store.open_log import all_bytes, append, open_log

FILE_SIZE = 1 << 20


def log_of(*messages):
    """Return the bytes of a log with these messages."""
    return bytes(records_of(messages, 0, store_host=("127.0.0.1", 1), has_prop_crc=False))


TAGGED = st.text(alphabet="ab #", max_size=5)


@given(tags=TAGGED, uniq_key=TAGGED, keys=TAGGED, delay=st.sampled_from(["", "0", "3", "x"]))
def test_scan_agrees_with_the_dispatch_rules(tags, uniq_key, keys, delay):
    """An ordinary record has the unit and the keys that ``derive`` names."""
    text = f"TAGS\x01{tags}\x02UNIQ_KEY\x01{uniq_key}\x02KEYS\x01{keys}\x02DELAY\x01{delay}\x02"
    levels = DelayLevels.parse("1s 5s 10s")
    derived = derive("t", sys_flag=1, store_ms=7, properties=text.encode(), delay_levels=levels)
    properties = {"TAGS": tags, "UNIQ_KEY": uniq_key, "KEYS": keys, "DELAY": delay}
    message = Message("t", b"body", properties=properties, sys_flag=1)
    data = log_of(message)
    found = scan_records(data, 0, 0, FILE_SIZE, 1, check_crc=True)
    assert found.queues == [("t", 0, 5, UNIT.pack(0, len(data), derived.tags_code))]
    hashes = [key_hash(topic_hash("t"), key) for key in derived.keys]
    assert [key for key, _, _ in PACKED_KEY.iter_unpack(found.keys)] == hashes


@pytest.mark.parametrize(
    "other",
    [
        Message("SCHEDULE_TOPIC_XXXX", b"", properties={"DELAY": "1"}),
        Message("t", b"", sys_flag=0x4),
        Message("t", b"", sys_flag=0x8),
        Message("t", b"", sys_flag=0x80),
        Message("Ärger", b""),
        Message("t", b"", properties={"KEYS": "é"}),
    ],
    ids=["delayed", "prepared", "committed", "inner batch", "topic", "key"],
)
def test_a_scan_ends_before_a_record_that_is_not_ordinary(other):
    """Those before it are read; from there on nothing is."""
    before = log_of(Message("t", b"1"), Message("t", b"2"))
    data = log_of(Message("t", b"1"), Message("t", b"2"), other, Message("t", b"3"))
    found = scan_records(data, 0, 0, FILE_SIZE, 10, check_crc=True)
    assert (found.record_count, found.position) == (2, len(before))
    assert scan_records(data, len(before), len(before), FILE_SIZE, 10, check_crc=True)[1] == 0


def test_a_gap_in_a_queue_ends_a_scan():
    """The caller's next scan begins with the record after the gap."""
    data = bytearray(log_of(Message("t", b"1"), Message("t", b"2")))
    start = len(data) // 2
    struct.pack_into(">q", data, start + position_of("queue_offset"), 9)
    assert scan_records(data, 0, 0, FILE_SIZE, 10, check_crc=True).record_count == 1
    after = scan_records(data, start, start, FILE_SIZE, 10, check_crc=True)
    assert [queue_offset for _, _, queue_offset, _ in after.queues] == [9]


FED = st.builds(
    Message,
    st.sampled_from(["t", "u", "Ärger", "SCHEDULE_TOPIC_XXXX", "v2" * 100]),
    st.binary(max_size=300),
    properties=st.none()
    | st.fixed_dictionaries(
        {"WAIT": TAGGED},
        optional={
            name: TAGGED | st.sampled_from(["é", "\udcc3\udca4"])
            for name in ("TAGS", "UNIQ_KEY", "KEYS")
        },
    ),
    queue_id=st.sampled_from([0, 1, -1]),
    sys_flag=st.sampled_from([0] * 9 + [1, 4, 8, 12, 0x80]),
)


@given(messages=st.lists(FED, max_size=30), count_max=st.sampled_from([1, 3, 100]))
def test_what_a_master_feeds_is_what_its_log_holds(messages, count_max):
    """Fed records are scanned as those of the log are, over files' ends and special records."""
    log = open_log()
    log.feed = feed = deque()
    with mock.patch("hastore.store.commit_log._encode_record", None):
        for message in messages:
            append(log, message)
    data, at = all_bytes(log), 0
    while at < len(data):
        fed = scan_fed_records(feed, at, len(data), count_max)
        if fed.record_count:
            count = fed.record_count
            assert fed == scan_records(data, at, at, log.file_size, count, check_crc=True)
            at = fed.position
        else:
            left = log.file_size - at % log.file_size
            check = check_record(data, at, left, at)
            is_ordinary = (
                check.kind is RecordKind.MESSAGE
                and scan_records(data, at, at, log.file_size, 1, check_crc=True).record_count
            )
            assert not is_ordinary, "an ordinary record was not fed"
            at += check.size


def test_feed_behind_ahead_and_beyond_the_limit():
    """Records below the offset are dropped, those above it or above the limit stay."""
    log = open_log()
    log.feed = feed = deque()
    with mock.patch("hastore.store.commit_log._encode_record", None):
        ends = [append(log, body=b"x").next_offset for _ in range(4)]
    assert scan_fed_records(feed, 1, ends[3], 10).record_count == 0
    assert len(feed) == 3
    assert scan_fed_records(feed, ends[0], ends[2] - 1, 10).position == ends[1]
    assert scan_fed_records(feed, ends[1], ends[3], 1).position == ends[2]
    assert [record[0] for record in feed] == [ends[2]]

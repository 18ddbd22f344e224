"""A delayed message as scheduled and as delivered, and when it is due."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.message import Message
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.delay_message import (
    FirstSeen,
    delay_fault,
    due_in_ms,
    is_delivery_of,
    to_real,
    to_schedule,
)
from hastore.store.record.message_codec import decode
from hastore.topic import SCHEDULE_TOPIC
from tests.support.store.open_log import append, open_log

LEVELS = DelayLevels.parse("1s 5s 10s")


def delayed(level="3", **changes):
    properties = {"UNIQ_KEY": "u1", "TAGS": "a", "DELAY": level, "WAIT": "true"}
    fields = {
        "queue_id": 2,
        "flag": 7,
        "sys_flag": 1,
        "born_timestamp_ms": 1_600_000_000_000,
        "born_host": ("10.0.0.1", 99),
        "reconsume_times": 4,
    }
    return Message("orders", b"body", properties=properties, **{**fields, **changes})


def stored(message):
    """Append the message to a log and return its record."""
    log = open_log()
    result = append(log, message)
    return decode(log.read(result.physic_offset, result.next_offset - result.physic_offset))


def test_delayed_message_goes_to_the_queue_of_its_level():
    """Its topic and queue become properties; its other fields stay."""
    message = delayed()
    scheduled = to_schedule(message, LEVELS)
    assert (scheduled.topic, scheduled.queue_id) == (SCHEDULE_TOPIC, 2)
    assert scheduled.properties == {
        **message.properties, "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip
    back = attrs.evolve(scheduled, topic="orders", queue_id=2, properties=message.properties)
    assert back == message


def test_level_above_the_table_is_stored_as_the_highest():
    """As in RocketMQ, this changes both the queue and the property."""
    scheduled = to_schedule(delayed("99"), LEVELS)
    assert (scheduled.queue_id, scheduled.properties["DELAY"]) == (2, "3")


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"x"),
        Message("orders", b"x", properties={"TAGS": "a"}),
        delayed("0"),
        delayed("-1"),
        delayed(sys_flag=4),
        delayed(sys_flag=12),
    ],
)
def test_message_without_a_delay_is_unchanged(message):
    """It has no DELAY or none above 0, or it is prepared or rolled back."""
    assert to_schedule(message, LEVELS) is message


def test_committed_message_is_delayed():
    """Its transaction has ended."""
    assert to_schedule(delayed(sys_flag=8), LEVELS).topic == SCHEDULE_TOPIC


def test_delay_fault_names_a_delay_that_is_not_a_number():
    """A message without a delay has no fault."""
    assert "'soon'" in delay_fault(delayed("soon"))
    assert delay_fault(delayed("3")) is None
    assert delay_fault(Message("orders", b"x")) is None


def test_delivered_message_equals_the_sent_one():
    """DELAY is gone, and the properties WAIT, REAL_TOPIC and REAL_QID are set."""
    message = delayed()
    real = to_real(stored(to_schedule(message, LEVELS)))
    properties = dict(message.properties)
    del properties["DELAY"]
    assert real.properties == {
        **properties, "WAIT": "false", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip
    assert attrs.evolve(real, properties=message.properties) == message


def test_keeps_ipv6_hosts():
    """The flag for the size of the host belongs to the record, not to the message."""
    message = delayed(born_host=("::1", 99))
    real = to_real(stored(to_schedule(message, LEVELS)))
    assert (real.born_host, real.sys_flag) == (("::1", 99), 1)


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "1", "REAL_QID": "0"},
        {"DELAY": "1", "REAL_TOPIC": "orders"},
        {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "-1"},
        {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "9" * 11},
        {"DELAY": "1", "REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "0"},
    ],
)
def test_record_without_a_valid_target_is_not_delivered(properties):
    """``to_real`` returns None, because the message would reach no consumer."""
    assert to_real(stored(Message(SCHEDULE_TOPIC, b"x", properties=properties))) is None


def test_recognizes_a_delivery_by_all_fields_that_consumers_see():
    """Another body, key, queue or attempt is another message; a delivery follows its source."""
    log = open_log()
    scheduled = to_schedule(delayed(), LEVELS)

    def put(message):
        result = append(log, message)
        size = result.next_offset - result.physic_offset
        return decode(log.read(result.physic_offset, size))

    early = put(to_real(stored(scheduled)))
    source = put(scheduled)
    real = to_real(source)
    assert is_delivery_of(put(real), source)
    assert not is_delivery_of(early, source)
    for change in (
        {"body": b"other"},
        {"queue_id": 1},
        {"topic": "others"},
        {"reconsume_times": 5},
        {"born_timestamp_ms": 1},
        {"properties": {**real.properties, "UNIQ_KEY": "u2"}},
    ):
        assert not is_delivery_of(put(attrs.evolve(real, **change)), source)


def test_message_is_due_at_its_deliver_time_by_the_wall_clock():
    """Without clock jumps this is exact to the millisecond."""
    at = {"deliver_time_ms": 10_000, "delay_ms": 5_000, "seen_ms": 1.0, "now_ms": 1.0}
    assert due_in_ms(wall_ms=5_000, **at) == 5_000
    assert due_in_ms(wall_ms=9_999, **at) == 1
    assert due_in_ms(wall_ms=10_000, **at) == 0


def test_clock_set_back_never_extends_a_delay():
    """A message seen for as long as its delay is due, whatever the wall clock shows."""
    at = {"deliver_time_ms": 10**12, "wall_ms": 5_000, "delay_ms": 5_000, "seen_ms": 100.0}
    assert due_in_ms(now_ms=100.0, **at) == 5_000
    assert due_in_ms(now_ms=5_100.0, **at) == 0


def test_longer_delays_use_wider_spans():
    """Memory stays bounded: 7,200 spans cover a year of messages."""
    year_ms = 366 * 86_400_000
    assert FirstSeen.of(7_200_000).width_ms == 1_000
    assert FirstSeen.of(year_ms).width_ms * 7_200 == year_ms


def test_messages_seen_within_a_second_share_a_span():
    """They count as seen at the latest time of the span."""
    seen = FirstSeen()
    for end, now_ms in ((1, 0.0), (2, 600.0), (3, 900.0), (4, 1_000.0), (4, 9_000.0)):
        seen.record(end, now_ms)
    assert [seen.seen_at_ms(offset) for offset in range(5)] == [900.0] * 3 + [1_000.0, None]
    assert seen.end == 4


@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.floats(0, 3_000)), max_size=30),
    start=st.integers(0, 10),
)
def test_recorded_time_is_at_most_a_second_late_and_never_early(steps, start):
    """Every message has a time, however they are grouped."""
    seen = FirstSeen()
    now_ms, end, truth = 0.0, start, {}
    for count, pause_ms in steps:
        now_ms += pause_ms
        truth.update(dict.fromkeys(range(end, end + count), now_ms))
        end += count
        seen.record(end, now_ms)
    for offset, at_ms in truth.items():
        assert at_ms <= seen.seen_at_ms(offset) <= at_ms + 1_000

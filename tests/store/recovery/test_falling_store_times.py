"""Starts on a log whose store times fall: RocketMQ's clock was ahead, and was set back."""

import random

import pytest

from hastore.store.recovery.rules import StartFacts
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock
from tests.support.store.recovering import FILE_SIZE, recover

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("settled_ms", "last_ms", "after"),
    [
        (None, 5, None),  # a clean stop
        (0, 5, None),
        (5_000_000, 5_000_000, None),
        (5_000_000, 0, None),  # no record
        (5_000_000, 4_999_999, 4_399_999),
        (5_000_000, 5, 1),
    ],
)
def test_a_last_record_older_than_the_settled_ones_shows_a_fall(settled_ms, last_ms, after):
    """Then the records of the ten minutes before it, by its time, are not settled."""
    facts = StartFacts(last_exit_ok=settled_ms is None, settled_ms=settled_ms)
    found = facts.after_fall(last_ms)
    assert (None if found is None else found.settled_ms) == after


@pytest.mark.parametrize("seed", range(10))
def test_no_unit_is_missing_after_a_power_cut_where_the_clock_was_set_back(seed):
    """The queues' last units were not forced to the disk, and some of them are on it."""
    disk, clock = FakeDisk(), FakeClock()
    store = recover(disk, clock=clock)
    clock.ms += 4 * DAY_MS
    for number in range(56):
        clock.ms += 1_000
        store.append(queue_id=number % 2)
    store.dispatch()
    store.flush_log()
    store.flush_queues()
    clock.ms -= 4 * DAY_MS
    # As a RocketMQ master does, whose clock is set back.
    store.log._store_timestamp_ms = 0
    store.log._millisecond_end_s = 0.0
    for number in range(40):
        store.append(bytes(FILE_SIZE // 10), queue_id=number % 2)
    store.dispatch()
    store.flush_log(checkpoint=False)
    store.checkpoint.physic_msg_timestamp = store.checkpoint.logics_msg_timestamp  # never falls
    store.checkpoint.flush()
    wanted = store.queue_contents()
    rng = random.Random(seed)
    store = recover(disk.cut_power(lambda: rng.random() < 0.5), clock=clock)
    store.dispatch()
    assert store.queue_contents() == wanted

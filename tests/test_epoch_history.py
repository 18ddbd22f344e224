"""Epochs of a log: what may follow what, and up to where two logs are equal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.epoch_history import (
    ENTRIES_MAX,
    EPOCH_MAX,
    ConsistentPoint,
    EpochEntry,
    EpochHistory,
    EpochSpan,
    fault_of,
)


def history(*entries):
    """Return a history of (epoch, start offset) pairs."""
    return EpochHistory(tuple(EpochEntry(*entry) for entry in entries))


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([(1, 0), (1, 5)], "epoch 1-5 after 1-0: epochs must rise"),
        ([(2, 0), (1, 5)], "epoch 1-5 after 2-0: epochs must rise"),
        ([(1, 5), (2, 5)], "epoch 2-5 after 1-5: start offsets must rise"),
        ([(-1, 0)], "epoch -1-0 is out of range"),
        ([(EPOCH_MAX + 1, 0)], f"epoch {EPOCH_MAX + 1}-0 is out of range"),
        ([(1, -1)], "epoch 1--1 is out of range"),
        ([(1, 1 << 63)], f"epoch 1-{1 << 63} is out of range"),
        ([(n, n) for n in range(ENTRIES_MAX + 1)], "more than 1000 epochs"),
    ],
)
def test_an_illegal_list_is_named(entries, fault):
    """A history is never made of one."""
    made = tuple(EpochEntry(*entry) for entry in entries)
    assert fault_of(made) == fault
    with pytest.raises(AssertionError, match="epoch"):
        EpochHistory(made)


def test_a_legal_list_has_no_fault():
    """Epochs may be skipped, and the first one may begin anywhere."""
    assert fault_of(()) is None
    assert fault_of([EpochEntry(0, 7), EpochEntry(5, 8)]) is None
    assert fault_of([EpochEntry(EPOCH_MAX, (1 << 63) - 1)]) is None
    assert not history(*((n, n) for n in range(ENTRIES_MAX - 1))).is_full
    assert history(*((n, n) for n in range(ENTRIES_MAX))).is_full


def test_each_byte_has_the_epoch_that_wrote_it():
    """Bytes before the first epoch have none."""
    epochs = history((1, 100), (3, 200))
    assert [epochs.at(n) for n in (0, 99, 100, 199, 200, 10**9)] == [
        None, None, (1, 100), (1, 100), (3, 200), (3, 200),
    ]  # fmt: skip
    # Of logs that end there: an epoch that has not a byte yet is not the newest.
    assert [epochs.end_epoch(n) for n in (0, 100, 101, 200, 201)] == [None, None, 1, 1, 3]
    assert epochs.end_of(EpochEntry(1, 100)) == 200
    assert epochs.end_of(EpochEntry(3, 200)) is None
    assert list(epochs.spans(250)) == [EpochSpan(1, 100, 200), EpochSpan(3, 200, 250)]
    assert list(epochs.spans(200)) == [EpochSpan(1, 100, 200), EpochSpan(3, 200, 200)]
    assert list(epochs.spans(150)) == [EpochSpan(1, 100, 150)]
    assert list(epochs.spans(0)) == []
    assert list(EpochHistory().spans(250)) == []
    assert str(epochs) == "1-100, 3-200"
    assert str(EpochHistory()) == "none"


def test_a_new_epoch_replaces_those_that_begin_where_it_does_or_later():
    """RocketMQ refuses it silently, and then two different logs look the same."""
    before = history((1, 0), (2, 822), (3, 900))
    assert before.begin(EpochEntry(4, 822)) == history((1, 0), (4, 822))
    assert before.begin(EpochEntry(4, 1000)) == history((1, 0), (2, 822), (3, 900), (4, 1000))
    assert EpochHistory().begin(EpochEntry(1, 0)) == history((1, 0))
    with pytest.raises(AssertionError, match="3-1000 after 1-0, 2-822, 3-900"):
        before.begin(EpochEntry(3, 1000))


def test_a_cut_drops_the_epochs_that_begin_behind_it():
    """One that begins exactly there has no byte left."""
    epochs = history((1, 0), (2, 100))
    assert epochs.cut(101) == epochs
    assert epochs.cut(100) == history((1, 0))
    assert epochs.cut(0) == EpochHistory()


def test_epochs_that_end_before_the_log_begins_are_dropped_except_the_last():
    """One that ends where the log begins stays: a slave that ends there has no later one."""
    epochs = history((1, 0), (2, 100), (3, 200))
    assert epochs.drop_expired(100) == epochs
    assert epochs.drop_expired(101) == history((2, 100), (3, 200))
    left = epochs.drop_expired(100)
    assert history((1, 0)).consistent_point(100, left, 300) == ConsistentPoint(1, 100)
    assert epochs.drop_expired(10**6) == history((3, 200))
    assert EpochHistory().drop_expired(5) == EpochHistory()


# Recorded from RocketMQ: own epochs and end, the master's, the offset of its truncation.
RECORDED = {
    "failover": (((1, 0),), 75_710, ((1, 0), (2, 47_859)), 71_173, (1, 47_859)),
    "autoswitch_2": (((1, 0),), 192_204, ((1, 0), (2, 192_204)), 205_601, (1, 192_204)),
    "slave_ahead": (((1, 0), (2, 2_444)), 4_888, ((1, 0), (3, 2_444)), 3_005, (1, 2_444)),
    "truncate_not_aligned": (((1, 0),), 2_433, ((1, 0),), 1_222, (1, 1_222)),
    "no_common_epoch": (((1, 0),), 2_433, ((5, 0),), 1_222, None),
    "truncate_to_zero": (((1, 0),), 411, ((1, 0),), 0, (1, 0)),
}


@pytest.mark.parametrize("case", RECORDED)
def test_the_consistent_point_is_rocketmqs(case):
    """Seen from either side."""
    own, end, masters, masters_end, point = RECORDED[case]
    own, masters = history(*own), history(*masters)
    expected = point and ConsistentPoint(*point)
    assert own.consistent_point(end, masters, masters_end) == expected
    assert masters.consistent_point(masters_end, own, end) == expected


def test_an_epoch_with_another_start_is_not_common():
    """A master restarted faster than its controller noticed, and began its epoch again."""
    own = history((1, 0), (2, 100))
    assert own.consistent_point(150, history((1, 0), (2, 120)), 150) == ConsistentPoint(1, 100)


def test_an_entry_behind_the_logs_end_counts_for_nothing():
    """It was written before bytes that never came."""
    own, masters = history((1, 0), (2, 1000)), history((1, 0), (2, 1000))
    assert own.consistent_point(800, masters, 1500) == ConsistentPoint(1, 800)


@st.composite
def two_logs(draw):
    """Return two logs as lists of the epoch of each byte, and their histories.

    They share their first bytes; then each goes on with epochs of its own: of one epoch only one of
    the two is the master.
    """
    epoch, shared = 1, []
    for _ in range(draw(st.integers(1, 3))):
        shared += [epoch] * draw(st.integers(1, 4))
        epoch += draw(st.integers(1, 2))
    logs = [shared[:], shared[:]]
    # One of the two goes on as master of the last shared epoch.
    logs[draw(st.integers(0, 1))] += [shared[-1]] * draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 4))):
        logs[draw(st.integers(0, 1))] += [epoch] * draw(st.integers(1, 4))
        epoch += 1
    return logs


def history_of(log):
    """Return the epochs of a log that is given byte by byte."""
    starts = [n for n in range(len(log)) if n == 0 or log[n] != log[n - 1]]
    return history(*((log[n], n) for n in starts))


@given(two_logs())
def test_the_consistent_point_is_the_first_byte_that_differs(logs):
    """Whatever two masters wrote after they lost sight of each other."""
    a, b = logs
    equal = 0
    while equal < min(len(a), len(b)) and a[equal] == b[equal]:
        equal += 1
    point = history_of(a).consistent_point(len(a), history_of(b), len(b))
    assert point == ConsistentPoint(a[equal - 1], equal)


@given(two_logs(), st.integers(0, 40), st.integers(0, 40))
def test_every_change_leaves_a_legal_history(logs, end, min_offset):
    """And one of the same bytes, as far as they are left."""
    log = logs[0]
    epochs = history_of(log)
    assert epochs.cut(end) == history_of(log[:end])
    left = epochs.drop_expired(min_offset)
    assert all(left.at(n) == epochs.at(n) for n in range(min_offset, len(log)))
    begun = epochs.begin(EpochEntry(99, min_offset))
    assert begun.entries[-1] == (99, min_offset)
    assert all(begun.at(n) == epochs.at(n) for n in range(min(min_offset, len(log))))

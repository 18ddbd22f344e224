"""Stores with random histories equal a model: puts, rolls, restarts, kills, power cuts, expiry.

Hypothesis generates the history and the queries, and shrinks a failure to a few steps. `make soak`
runs thousands of them.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from hastore.store.record.layout import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from tests.support.env.fake_disk import START_MS
from tests.support.store.message_store_model import StorePair, message_of

TOPICS = ("orders", "%RETRY%group", "x")
QUEUE_IDS = (0, 1)
TAGS = (None, "red", "blue", "Aa", "BB")  # the last two have the same hash code
KEYS = ("k", "AaAa", "BBBB", "AaBB", "order-7", "käse")  # three have the same hash code
EXPRESSIONS = (None, "*", "red", "red || blue", "Aa", "BB || red")
TRANSACTIONS = (0, 0, 0, 0, TRANSACTION_PREPARED_TYPE, TRANSACTION_COMMIT_TYPE,
                TRANSACTION_ROLLBACK_TYPE)  # fmt: skip

topics, queue_ids, keys = st.sampled_from(TOPICS), st.sampled_from(QUEUE_IDS), st.sampled_from(KEYS)
tags = st.sampled_from(TAGS)
body_sizes = st.sampled_from((1, 10, 100, 700))
times_ms = st.integers(START_MS - 1_000, START_MS + 200_000)


class StoreMachine(RuleBasedStateMachine):
    """Steps of a store's history; queries are steps too."""

    def __init__(self):
        super().__init__()
        self.pair = StorePair()
        self.number = 0

    def make(self, topic, queue_id, size, *, tag, names, sys_flag=0):
        """A message with a body that no other has."""
        self.number += 1
        body = (b"%d-" % self.number) * size
        uniq = f"U{self.number}" if self.number % 2 else None
        return message_of(
            topic, queue_id, body[: size + 8], tags=tag, uniq=uniq, keys=names, sys_flag=sys_flag
        )

    @rule(
        topic=topics,
        queue_id=queue_ids,
        size=body_sizes,
        tag=tags,
        names=st.lists(keys, max_size=2, unique=True),
        sys_flag=st.sampled_from(TRANSACTIONS),
    )
    def put(self, *, topic, queue_id, size, tag, names, sys_flag):
        self.pair.put([self.make(topic, queue_id, size, tag=tag, names=names, sys_flag=sys_flag)])

    @rule(topic=topics, queue_id=queue_ids, size=body_sizes, tag=tags, count=st.integers(2, 4))
    def put_batch(self, topic, queue_id, size, tag, count):
        self.pair.put(
            [
                self.make(topic, queue_id, size, tag=tag, names=KEYS[:index])
                for index in range(count)
            ]
        )

    @rule(topic=topics, tag=tags, key=keys, count=st.integers(10, 30))
    def put_many(self, topic, tag, key, count):
        for _ in range(count):
            self.pair.put([self.make(topic, 0, 100, tag=tag, names=[key])])

    @rule(ms=st.sampled_from((1, 500, 3_000, 60_000)))
    def time_passes(self, ms):
        self.pair.clock.ms += ms

    @rule()
    def dispatch(self):
        self.pair.dispatch()

    @rule()
    def flush_log(self):
        self.pair.flush_log()

    @rule()
    def flush_queues(self):
        self.pair.flush_queues()

    @rule()
    def write_checkpoint(self):
        self.pair.write_checkpoint()

    @rule(and_queues=st.booleans())
    def expire(self, and_queues):
        self.pair.expire(and_queues=and_queues)

    @rule()
    def stop(self):
        self.pair.stop()

    @rule()
    def kill(self):
        self.pair.kill()

    @rule(seed=st.integers(0, 2**32), share=st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    def cut_power(self, seed, share):
        self.pair.cut_power(seed, share)

    @rule(
        topic=topics,
        queue_id=queue_ids,
        offset=st.integers(0, 40),
        max_count=st.sampled_from((1, 3, 32)),
        expression=st.sampled_from(EXPRESSIONS),
    )
    def get(self, topic, queue_id, offset, max_count, expression):
        self.pair.check_get(topic, queue_id, offset, max_count, expression)

    @rule(
        topic=topics, key=keys, max_count=st.sampled_from((1, 3, 64)), begin_ms=times_ms,
        length_ms=st.sampled_from((0, 1_000, 10**6)),
    )  # fmt: skip
    def query(self, topic, key, max_count, begin_ms, length_ms):
        self.pair.check_query(topic, key, max_count, begin_ms, begin_ms + length_ms)

    @rule(topic=topics, queue_id=queue_ids, timestamp_ms=times_ms)
    def look_up_by_time(self, topic, queue_id, timestamp_ms):
        self.pair.check_time(topic, queue_id, timestamp_ms)

    @invariant()
    def offsets_are_in_order(self):
        log = self.pair.store.commit_log
        assert log.min_offset <= log.flushed_offset <= log.max_offset
        assert self.pair.reput.reput_offset <= log.max_offset
        assert self.pair.reput.fault is None

    def teardown(self):
        """Read everything once more, before and after a last kill."""
        self.pair.check_all(TOPICS, QUEUE_IDS, KEYS)
        self.pair.kill()
        self.pair.check_all(TOPICS, QUEUE_IDS, KEYS)


def test_store_equals_its_model_after_any_history():
    """Reads by queue, tag, key, id and time return what a search through a list returns."""
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=100, stateful_step_count=40, report_multiple_bugs=False),
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_store_equals_its_model_after_thousands_of_histories():
    """Runs 3,000 longer histories."""
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=3_000, stateful_step_count=60, report_multiple_bugs=False),
    )


def filled(pair, count, *, topic="x", key="k"):
    for number in range(count):
        pair.put([message_of(topic, 0, b"%d" % number * 50, keys=[key])])


def test_keys_are_found_if_a_power_cut_leaves_the_index_ahead_of_the_log():
    """New messages at the offsets of lost ones are found by their own keys."""
    pair = StorePair()
    filled(pair, 5, key="old")
    pair.dispatch()
    pair.flush_queues()
    pair.cut_power(0, 0.0)
    filled(pair, 5)
    pair.check_all(TOPICS, QUEUE_IDS, ["k", "old"])


def test_query_skips_newer_messages_with_the_same_key_hash():
    """More of them are newer than max_count; the one message with the key is older."""
    pair = StorePair()
    filled(pair, 1, key="AaAa")
    filled(pair, 9, key="BBBB")
    pair.dispatch()
    pair.check_query("x", "AaAa", 1, 0, 2**60)


def test_first_power_cut_of_a_new_store_is_not_damage():
    """Before the first flush, a hole before intact records breaks no promise."""
    for seed in range(20):
        pair = StorePair()
        filled(pair, 30)
        pair.cut_power(seed, 0.5)
        pair.check_all(TOPICS, QUEUE_IDS, KEYS)


def test_expired_queue_keeps_its_queue_offset_after_a_power_cut():
    """Its units are on disk before expiry deletes the last log file that holds its messages."""
    pair = StorePair()
    filled(pair, 3, topic="orders")
    filled(pair, 60)
    pair.flush_log()
    pair.dispatch()
    pair.expire()
    assert not pair.queue("orders", 0)
    pair.cut_power(0, 0.0)
    filled(pair, 1, topic="orders")
    assert pair.puts[-1].queue_offset == 3
    pair.check_all(TOPICS, QUEUE_IDS, KEYS)

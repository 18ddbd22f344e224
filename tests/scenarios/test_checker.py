"""The checker's rules: each fires on the violation it is for, and on nothing else."""

from __future__ import annotations

import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.checker import VIOLATIONS_KEPT_MAX, Rule
from hastore_scenarios.judge.history import EventKind
from tests.scenarios.stories import SIZE, Story, broken


def test_a_correct_story_has_no_violation() -> None:
    """Stored, refused, unacknowledged and unanswered puts break no rule if the logs fit them."""
    story = Story()
    story.put(S.PUT_OK)
    story.put(S.MESSAGE_ILLEGAL)
    story.put(S.PUT_OK, wait=False)
    story.event(EventKind.PAUSE, "b", took_s=0.01)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.event(EventKind.RESUME, "b")
    story.put(None)
    story.event(EventKind.KILL, "b", took_s=0.01)
    story.put(S.SLAVE_NOT_AVAILABLE, logs="a")
    story.end()
    assert story.broken() == {}


def test_verdict_counts_operations_and_records() -> None:
    """It also has a count for every rule."""
    story = Story()
    story.put(S.PUT_OK)
    verdict = story.checker().verdict()
    assert (verdict.operations, verdict.records, verdict.ok) == (1, 2, True)
    assert set(verdict.counts) == {rule.value for rule in Rule}
    assert verdict.to_dict()["ok"] is True


def test_put_ok_missing_from_the_master_is_lost() -> None:
    """A message with PUT_OK must be in the log of the master that answered."""
    story = Story()
    story.put(S.PUT_OK, logs="b")
    assert story.broken() == {"acknowledged lost": 1}


def test_put_ok_missing_from_the_promoted_slave_is_lost() -> None:
    """A message with PUT_OK under SYNC_MASTER must be in the next master's log."""
    story = Story()
    story.logs["c"] = []
    story.start_slave("c", "a")
    story.put(S.PUT_OK, logs="ac")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.start_master("b", log_end=0)
    assert story.broken() == {"acknowledged lost": 1}


def test_put_ok_of_an_async_master_may_be_lost_with_it() -> None:
    """An ASYNC_MASTER promises its own log only."""
    story = Story(role="ASYNC_MASTER")
    story.put(S.PUT_OK, logs="a")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.start_master("b", log_end=0)
    assert story.broken() == {}


def test_put_ok_missing_from_every_slave_is_not_replicated() -> None:
    """A message with PUT_OK under SYNC_MASTER must be in some slave's log."""
    story = Story()
    story.put(S.PUT_OK, logs="a")
    assert story.broken() == {"not replicated": 1}


@pytest.mark.parametrize("status", [S.SLAVE_NOT_AVAILABLE, S.FLUSH_SLAVE_TIMEOUT])
def test_a_stored_message_must_be_in_the_masters_log(status: S) -> None:
    """These statuses also say that the master has the message."""
    story = Story(slave=False)
    story.put(status, took_s=1.0, logs="")
    assert story.broken() == {"stored not there": 1}


@pytest.mark.parametrize("log", ["a", "b"])
def test_a_rejected_message_must_be_in_no_log(log: str) -> None:
    """A status that says "not stored" is false if any log has the message."""
    story = Story()
    operation = story.put(S.SERVICE_NOT_AVAILABLE)
    story.append(log, operation, 0, 0)
    assert story.broken() == {"rejected but there": 1}


def test_an_unsent_message_must_be_in_no_log() -> None:
    """The producer knows that the message never left it."""
    story = Story()
    operation = story.put(None, logs="ab")
    story.history.lose(operation, "connection refused", sent=False)
    assert story.broken() == {"rejected but there": 2}


def test_a_message_with_a_lost_answer_may_be_stored_or_not() -> None:
    """The link broke before the answer arrived."""
    story = Story()
    for logs in ("", "a", "ab"):
        operation = story.put(None, logs=logs)
        story.history.lose(operation, "the link broke", sent=True)
    assert story.broken() == {}


@pytest.mark.parametrize(
    ("field", "value"), [("physic_offset", 7), ("queue_offset", 3), ("next_offset", SIZE + 1)]
)
def test_an_answers_offsets_must_match_the_record(field: str, value: int) -> None:
    """Physical offset, next offset and queue offset must be those in the master's log."""
    story = Story()
    operation = story.put(S.PUT_OK)
    setattr(operation, field, value)
    assert story.broken() == {"wrong place": 1}


def test_a_message_twice_in_one_log_is_a_duplicate() -> None:
    """A UNIQ_KEY that was sent once may occur once in each log."""
    story = Story()
    operation = story.put(S.PUT_OK)
    story.append("b", operation, SIZE, 1)
    assert story.broken() == {"duplicate": 1}


def test_a_resent_message_may_be_stored_twice() -> None:
    """A log may hold as many copies as the client sent, and no more."""
    story = Story()
    operation = story.put(S.PUT_OK, sent_count=2)
    story.append("a", operation, SIZE, 1)
    assert story.broken() == {}
    story.append("a", operation, 2 * SIZE, 2)
    assert story.broken() == {"duplicate": 1}


@pytest.mark.parametrize("change", [{"key": "other"}, {"key": None}, {"body_crc": 77}])
def test_a_record_that_was_never_sent_is_a_violation(change: dict) -> None:
    """Its key is unknown or missing, or its body is not the one that was sent."""
    story = Story()
    operation = story.put(S.PUT_OK)
    story.append("a", operation, SIZE, 1, **change)
    assert story.broken() == {"never sent": 1}


def test_queue_offsets_count_up_by_one() -> None:
    """Gaps and repetitions are violations in any log."""
    story = Story()
    for queue_offset in (0, 2, 2, 3):
        operation = story.put(None, logs="")
        story.append("a", operation, operation.op * SIZE, queue_offset)
    assert story.broken() == {"queue offset gap": 2}


def test_different_bytes_at_one_offset_are_a_divergence() -> None:
    """Master and slave must agree wherever both have bytes."""
    story = Story()
    checker = story.checker()
    checker.compared("a", "b", 4096)
    assert broken(checker.verdict()) == {"diverged bytes": 1}


def test_a_former_master_may_differ_after_the_promotion() -> None:
    """Lineages diverge where the promoted slave's log ended; below that, the bytes must agree."""
    story = Story()
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.start_master("b", log_end=500)
    checker = story.checker()
    checker.compared("a", "b", 500)
    assert checker.verdict().ok
    checker.compared("a", "b", 499)
    assert broken(checker.verdict()) == {"diverged bytes": 1}


def test_a_damaged_log_is_a_violation() -> None:
    """The checker counts the damage that `log verify` finds."""
    checker = Story().checker()
    checker.damaged("b", "bad-body-crc at 123")
    assert broken(checker.verdict()) == {"damaged": 1}


@pytest.mark.parametrize(
    "fault",
    [
        lambda story: story.event(EventKind.KILL, "b"),
        lambda story: story.event(EventKind.STOP, "b"),
        lambda story: story.event(EventKind.PAUSE, "b"),
        lambda story: story.event(EventKind.LINK, "b", mode="cut", flows=False),
    ],
    ids=["killed", "stopped", "frozen", "cut off"],
)
def test_put_ok_without_a_reachable_slave_is_false(fault) -> None:
    """Under SYNC_MASTER, PUT_OK needs a slave that can acknowledge."""
    story = Story()
    story.put(S.PUT_OK)
    fault(story)
    story.at(5.0)
    story.put(S.PUT_OK)
    assert story.broken() == {"false ok": 1}


def test_put_ok_while_a_fault_takes_effect_is_allowed() -> None:
    """Until SIGSTOP has taken effect for certain, the slave may acknowledge."""
    story = Story()
    story.at(2.0)
    story.event(EventKind.PAUSE, "b", took_s=0.5)
    story.time_s = 2.4
    story.put(S.PUT_OK)
    assert story.broken() == {}


def test_put_ok_after_the_slave_resumed_is_allowed() -> None:
    """A put that was still waiting when the fault ended may be acknowledged."""
    story = Story()
    story.event(EventKind.PAUSE, "b")
    story.at(2.0)
    operation = story.put(None)
    story.event(EventKind.RESUME, "b")
    story.history.complete(operation, S.PUT_OK, physic_offset=0, next_offset=SIZE, queue_offset=0)
    assert story.broken() == {}


def test_unavailable_while_a_slave_was_healthy_is_false() -> None:
    """Its slave is in step and has had no fault since."""
    story = Story()
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {"false unavailable": 1}


@pytest.mark.parametrize(
    "fault",
    [
        lambda story: story.event(EventKind.PAUSE, "b", took_s=1.0),
        lambda story: story.event(EventKind.KILL, "b"),
        lambda story: story.event(EventKind.LINK, "b", mode="open", flows=True),
        lambda story: story.event(EventKind.PAUSE, "a"),
    ],
    ids=["frozen", "killed", "link was reset", "master frozen"],
)
def test_unavailable_after_a_fault_is_allowed(fault) -> None:
    """After any fault of a slave, its link or its master, the slave's health is unknown."""
    story = Story()
    fault(story)
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {}


def test_unavailable_beyond_the_lag_limit_is_allowed() -> None:
    """After many puts a healthy slave may lag by more than ha_slave_fallbehind_max for a moment."""
    story = Story()
    for _ in range(10):
        story.put(S.PUT_OK, wait=False)
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {}
    story.put(S.PUT_OK)
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {"false unavailable": 1}


@pytest.mark.parametrize(
    ("status", "role", "flush", "wait"),
    [
        (S.FLUSH_SLAVE_TIMEOUT, "ASYNC_MASTER", "ASYNC_FLUSH", True),
        (S.SLAVE_NOT_AVAILABLE, "ASYNC_MASTER", "SYNC_FLUSH", True),
        (S.FLUSH_DISK_TIMEOUT, "SYNC_MASTER", "ASYNC_FLUSH", True),
        (S.FLUSH_SLAVE_TIMEOUT, "SYNC_MASTER", "SYNC_FLUSH", False),
        (S.FLUSH_DISK_TIMEOUT, "SYNC_MASTER", "SYNC_FLUSH", False),
    ],
)
def test_a_status_impossible_in_its_mode_is_a_violation(
    status: S, role: str, flush: str, wait: bool
) -> None:
    """A slave status needs SYNC_MASTER, a disk status needs SYNC_FLUSH, and both need WAIT."""
    story = Story(role=role, flush=flush)
    story.put(status, wait=wait, took_s=5.0)
    assert story.broken() == {"impossible status": 1}


def test_expired_messages_may_be_missing() -> None:
    """Messages below the offset up to which a master deleted its files are not lost; others are."""
    story = Story()
    story.put(S.PUT_OK)
    story.put(S.PUT_OK)
    del story.logs["a"][0]
    assert story.broken() == {"acknowledged lost": 1}
    story.event(EventKind.DISK, "a", fault="expire", min_offset=SIZE)
    assert story.broken() == {}
    del story.logs["a"][0]
    assert story.broken() == {"acknowledged lost": 1}


def test_a_wiped_disk_excuses_earlier_messages_only() -> None:
    """Messages that the master appends after the wipe must be in its log."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.DISK, "a", fault="wipe")
    story.put(S.PUT_OK)
    del story.logs["a"][0]
    assert story.broken() == {}
    del story.logs["a"][0]
    assert story.broken() == {"acknowledged lost": 1}


def test_a_wiped_node_may_join_an_older_master() -> None:
    """That master is not the node's successor and may lack what the node had acknowledged."""
    story = Story()
    story.logs["c"] = []
    story.start_master("c", log_end=0)
    story.at(2.0)
    story.put(S.PUT_OK, logs="ab")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.DISK, "a", fault="wipe")
    story.start_slave("a", "c", log_end=None)
    story.logs["a"] = []
    assert story.broken() == {}


def test_a_slave_with_a_failing_disk_is_not_healthy() -> None:
    """SLAVE_NOT_AVAILABLE is correct from the disk's first fault on."""
    story = Story()
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {"false unavailable": 1}
    story = Story()
    story.event(EventKind.DISK, "b", fault="full")
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {}


@pytest.mark.parametrize(
    ("status", "timeout_s"), [(S.FLUSH_SLAVE_TIMEOUT, 1.0), (S.FLUSH_DISK_TIMEOUT, 2.0)]
)
def test_a_timeout_status_before_the_timeout_is_a_violation(status: S, timeout_s: float) -> None:
    """The master must have waited for the whole timeout."""
    story = Story(flush="SYNC_FLUSH")
    story.put(status, took_s=timeout_s)
    assert story.broken() == {}
    story.put(status, took_s=timeout_s - 0.1)
    assert story.broken() == {"answered too early": 1}


def test_a_stopping_master_may_give_up_waits() -> None:
    """A clean stop answers waiting puts before their timeout."""
    story = Story()
    operation = story.put(None)
    story.event(EventKind.STOP, "a", took_s=0.1)
    story.history.complete(
        operation, S.FLUSH_SLAVE_TIMEOUT, physic_offset=0, next_offset=SIZE, queue_offset=0
    )
    assert story.broken() == {}


def test_a_connected_slave_must_have_caught_up() -> None:
    """A slave that is connected at the end must be at its master's max offset."""
    story = Story()
    story.end("b", max_offset=100, master_max_offset=300)
    assert story.broken() == {"not caught up": 1}


def test_a_connected_slave_must_have_been_waited_for() -> None:
    """Leaving a connected slave out of the final catch-up is itself a violation."""
    story = Story()
    story.end()
    assert story.broken() == {"not caught up": 1}


def test_a_killed_slave_need_not_have_caught_up() -> None:
    """The final catch-up leaves it out."""
    story = Story()
    story.event(EventKind.KILL, "b")
    story.end()
    assert story.broken() == {}


def test_all_violations_are_counted_and_some_are_kept() -> None:
    """The verdict keeps VIOLATIONS_KEPT_MAX sentences."""
    story = Story(slave=False)
    for _ in range(VIOLATIONS_KEPT_MAX + 5):
        story.put(S.SLAVE_NOT_AVAILABLE, logs="")
    verdict = story.checker().verdict()
    assert broken(verdict) == {"stored not there": VIOLATIONS_KEPT_MAX + 5}
    assert len(verdict.violations) == VIOLATIONS_KEPT_MAX
    assert str(verdict.violations[0]).startswith(
        "stored not there: put 0 (K0, SLAVE_NOT_AVAILABLE)"
    )

"""The checker's rules: each fires on the lie it is for, and on nothing else."""

from __future__ import annotations

import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.checker import VIOLATIONS_KEPT_MAX, Rule
from hastore_scenarios.judge.history import EventKind
from tests.scenarios.stories import SIZE, Story, broken


def test_an_honest_story_has_no_violation() -> None:
    """Stored, refused, weaker and unanswered puts that are where they should be break no rule."""
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


def test_verdict_counts_what_it_looked_at() -> None:
    """A verdict names how many operations and records were judged, and every rule."""
    story = Story()
    story.put(S.PUT_OK)
    verdict = story.checker().verdict()
    assert (verdict.operations, verdict.records, verdict.ok) == (1, 2, True)
    assert set(verdict.counts) == {rule.value for rule in Rule}
    assert verdict.to_dict()["ok"] is True


def test_put_ok_that_the_master_does_not_have_is_lost() -> None:
    """PUT_OK and not in the answering master's own log: acknowledged lost."""
    story = Story()
    story.put(S.PUT_OK, logs="b")
    assert story.broken() == {"acknowledged lost": 1}


def test_put_ok_that_the_promoted_slave_does_not_have_is_lost() -> None:
    """PUT_OK under SYNC_MASTER must be in the log of whoever became master afterwards."""
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


def test_put_ok_that_no_slave_has_is_not_replicated() -> None:
    """PUT_OK under SYNC_MASTER and in no slave's log."""
    story = Story()
    story.put(S.PUT_OK, logs="a")
    assert story.broken() == {"not replicated": 1}


@pytest.mark.parametrize("status", [S.SLAVE_NOT_AVAILABLE, S.FLUSH_SLAVE_TIMEOUT])
def test_a_stored_status_must_be_in_the_masters_log(status: S) -> None:
    """A status weaker than PUT_OK still says that the master has the message."""
    story = Story(slave=False)
    story.put(status, took_s=1.0, logs="")
    assert story.broken() == {"stored not there": 1}


@pytest.mark.parametrize("log", ["a", "b"])
def test_a_rejected_message_must_be_in_no_log(log: str) -> None:
    """A status that says "not stored" is a lie if any log has the message."""
    story = Story()
    operation = story.put(S.SERVICE_NOT_AVAILABLE)
    story.append(log, operation, 0, 0)
    assert story.broken() == {"rejected but there": 1}


def test_a_message_that_was_never_sent_must_be_in_no_log() -> None:
    """The producer knows that nothing left it; then nothing may be stored."""
    story = Story()
    operation = story.put(None, logs="ab")
    story.history.lose(operation, "connection refused", sent=False)
    assert story.broken() == {"rejected but there": 2}


def test_a_lost_answer_allows_both() -> None:
    """After a cut link the message may be there or not."""
    story = Story()
    for logs in ("", "a", "ab"):
        operation = story.put(None, logs=logs)
        story.history.lose(operation, "the link broke", sent=True)
    assert story.broken() == {}


@pytest.mark.parametrize(
    ("field", "value"), [("physic_offset", 7), ("queue_offset", 3), ("next_offset", SIZE + 1)]
)
def test_an_answers_offsets_are_the_records(field: str, value: int) -> None:
    """Offset, end and queue offset of an answer must be those in the master's log."""
    story = Story()
    operation = story.put(S.PUT_OK)
    setattr(operation, field, value)
    assert story.broken() == {"wrong place": 1}


def test_one_message_twice_in_a_log_is_a_duplicate() -> None:
    """A UNIQ_KEY that was sent once may stand once in each log."""
    story = Story()
    operation = story.put(S.PUT_OK)
    story.append("b", operation, SIZE, 1)
    assert story.broken() == {"duplicate": 1}


def test_a_message_that_was_sent_again_may_be_there_twice() -> None:
    """A client that re-sends answers for its duplicates itself, but for no more than it sent."""
    story = Story()
    operation = story.put(S.PUT_OK, sent_count=2)
    story.append("a", operation, SIZE, 1)
    assert story.broken() == {}
    story.append("a", operation, 2 * SIZE, 2)
    assert story.broken() == {"duplicate": 1}


@pytest.mark.parametrize("change", [{"key": "other"}, {"key": None}, {"body_crc": 77}])
def test_a_message_that_nobody_sent_is_found(change: dict) -> None:
    """A record with a foreign key, no key or another body was never sent."""
    story = Story()
    operation = story.put(S.PUT_OK)
    story.append("a", operation, SIZE, 1, **change)
    assert story.broken() == {"never sent": 1}


def test_queue_offsets_count_up_by_one() -> None:
    """A queue's logical indexes have neither gap nor repetition in any log."""
    story = Story()
    for queue_offset in (0, 2, 2, 3):
        operation = story.put(None, logs="")
        story.append("a", operation, operation.op * SIZE, queue_offset)
    assert story.broken() == {"queue offset gap": 2}


def test_unlike_bytes_at_like_offsets_are_a_divergence() -> None:
    """Master and slave must agree wherever both have bytes."""
    story = Story()
    checker = story.checker()
    checker.compared("a", "b", 4096)
    assert broken(checker.verdict()) == {"diverged bytes": 1}


def test_a_former_master_may_differ_behind_the_promotion() -> None:
    """Lineages part where the promoted slave's log ended; below it the bytes must agree."""
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
    """What `log verify` finds counts."""
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
def test_put_ok_without_anybody_to_acknowledge_is_false(fault) -> None:
    """PUT_OK under SYNC_MASTER while every slave is gone, frozen or cut off is a lie."""
    story = Story()
    story.put(S.PUT_OK)
    fault(story)
    story.at(5.0)
    story.put(S.PUT_OK)
    assert story.broken() == {"false ok": 1}


def test_put_ok_during_a_fault_that_is_just_beginning_is_no_lie() -> None:
    """Until SIGSTOP has certainly taken effect, the slave may have acknowledged."""
    story = Story()
    story.at(2.0)
    story.event(EventKind.PAUSE, "b", took_s=0.5)
    story.time_s = 2.4
    story.put(S.PUT_OK)
    assert story.broken() == {}


def test_put_ok_after_the_slave_runs_on_is_no_lie() -> None:
    """A put that was still waiting when the fault ended may be acknowledged."""
    story = Story()
    story.event(EventKind.PAUSE, "b")
    story.at(2.0)
    operation = story.put(None)
    story.event(EventKind.RESUME, "b")
    story.history.complete(operation, S.PUT_OK, physic_offset=0, next_offset=SIZE, queue_offset=0)
    assert story.broken() == {}


def test_unavailable_while_a_slave_was_healthy_is_false() -> None:
    """SLAVE_NOT_AVAILABLE with a slave in step, and nothing done to it, is a lie."""
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
def test_unavailable_after_a_fault_is_no_lie(fault) -> None:
    """Whatever is done to a slave, its link or its master ends what is known of its health."""
    story = Story()
    fault(story)
    story.put(S.SLAVE_NOT_AVAILABLE)
    assert story.broken() == {}


def test_unavailable_is_no_lie_beyond_the_limit() -> None:
    """A healthy slave that cannot have got all of it yet may be beyond ha_slave_fallbehind_max."""
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
def test_a_status_that_its_mode_cannot_give_is_found(
    status: S, role: str, flush: str, wait: bool
) -> None:
    """No slave status without SYNC_MASTER, no disk status without SYNC_FLUSH, none without WAIT."""
    story = Story(role=role, flush=flush)
    story.put(status, wait=wait, took_s=5.0)
    assert story.broken() == {"impossible status": 1}


def test_what_has_expired_need_not_be_there() -> None:
    """Messages below the offset up to which a master deleted its files are no loss; others are."""
    story = Story()
    story.put(S.PUT_OK)
    story.put(S.PUT_OK)
    del story.logs["a"][0]
    assert story.broken() == {"acknowledged lost": 1}
    story.event(EventKind.DISK, "a", fault="expire", min_offset=SIZE)
    assert story.broken() == {}
    del story.logs["a"][0]
    assert story.broken() == {"acknowledged lost": 1}


def test_a_disk_that_was_taken_away_is_excused_up_to_then() -> None:
    """What a wiped master held is its slave's to keep; what comes afterwards is its own again."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.DISK, "a", fault="wipe")
    story.put(S.PUT_OK)
    del story.logs["a"][0]
    assert story.broken() == {}
    del story.logs["a"][0]
    assert story.broken() == {"acknowledged lost": 1}


def test_a_master_that_was_there_before_is_nobodys_heir() -> None:
    """A wiped node joins it: it lacks what the node had acknowledged, and nothing is lost by it."""
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
    """SLAVE_NOT_AVAILABLE is true from the moment at which its disk was made to fail."""
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
def test_a_timeout_before_its_time_is_found(status: S, timeout_s: float) -> None:
    """A timeout status that comes before the timeout is over did not wait."""
    story = Story(flush="SYNC_FLUSH")
    story.put(status, took_s=timeout_s)
    assert story.broken() == {}
    story.put(status, took_s=timeout_s - 0.1)
    assert story.broken() == {"answered too early": 1}


def test_a_stopping_master_may_give_up_waits() -> None:
    """The waits that a clean stop gives up are answered before their time."""
    story = Story()
    operation = story.put(None)
    story.event(EventKind.STOP, "a", took_s=0.1)
    story.history.complete(
        operation, S.FLUSH_SLAVE_TIMEOUT, physic_offset=0, next_offset=SIZE, queue_offset=0
    )
    assert story.broken() == {}


def test_a_connected_slave_must_have_caught_up() -> None:
    """A slave that was connected at the end and stands elsewhere than its master is named."""
    story = Story()
    story.end("b", max_offset=100, master_max_offset=300)
    assert story.broken() == {"not caught up": 1}


def test_a_connected_slave_must_have_been_waited_for() -> None:
    """Leaving a connected slave out of the final catch-up is itself a violation."""
    story = Story()
    story.end()
    assert story.broken() == {"not caught up": 1}


def test_a_slave_that_was_gone_need_not_have_caught_up() -> None:
    """Nobody waits for a killed slave."""
    story = Story()
    story.event(EventKind.KILL, "b")
    story.end()
    assert story.broken() == {}


def test_violations_are_counted_all_and_kept_some() -> None:
    """A run that goes wrong a thousand times is told in a hundred sentences."""
    story = Story(slave=False)
    for _ in range(VIOLATIONS_KEPT_MAX + 5):
        story.put(S.SLAVE_NOT_AVAILABLE, logs="")
    verdict = story.checker().verdict()
    assert broken(verdict) == {"stored not there": VIOLATIONS_KEPT_MAX + 5}
    assert len(verdict.violations) == VIOLATIONS_KEPT_MAX
    assert str(verdict.violations[0]).startswith(
        "stored not there: put 0 (K0, SLAVE_NOT_AVAILABLE)"
    )

"""The history: outcomes with three values, and a file that can be checked again."""

from __future__ import annotations

import io

import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.checker import Checker
from hastore_scenarios.judge.history import EventKind, History, Outcome, load_history, outcome_of
from tests.scenarios.stories import Story


@pytest.mark.parametrize("status", list(S))
def test_every_status_has_one_outcome(status: S) -> None:
    """PUT_OK is OK; a message that is certainly not stored is FAIL; the rest is UNKNOWN."""
    expected = {
        S.PUT_OK: Outcome.OK,
        S.FLUSH_DISK_TIMEOUT: Outcome.UNKNOWN,
        S.FLUSH_SLAVE_TIMEOUT: Outcome.UNKNOWN,
        S.SLAVE_NOT_AVAILABLE: Outcome.UNKNOWN,
        S.UNKNOWN_ERROR: Outcome.UNKNOWN,
    }.get(status, Outcome.FAIL)
    assert outcome_of(status) is expected
    assert not (status.stored and expected is Outcome.FAIL)


def written_story() -> tuple[Story, str]:
    """Return a story with every kind of line, and the text of its file."""
    story = Story()
    sink = io.StringIO()
    story.history.sink = sink
    story.put(S.PUT_OK)
    story.put(S.MESSAGE_ILLEGAL)
    story.history.lose(story.put(None), "the link broke", sent=True)
    story.history.lose(story.put(None, logs=""), "refused", sent=False)
    story.put(None)
    story.event(EventKind.KILL, "b", took_s=0.1)
    story.history.event(EventKind.SAY, text="it is over")
    return story, sink.getvalue()


def test_a_history_survives_writing_and_reading() -> None:
    """Operations, outcomes, times and events are read back unchanged."""
    story, text = written_story()
    loaded = load_history(text.splitlines())
    assert len(loaded.operations) == 5
    for before, after in zip(story.history.operations, loaded.operations, strict=True):
        for name in ("op", "key", "node", "outcome", "status", "physic_offset", "wait", "error"):
            assert getattr(after, name) == getattr(before, name), name
        assert after.invoked_s == pytest.approx(before.invoked_s)
    kill, say = loaded.events
    assert (kill.kind, kill.node, say.text) == (EventKind.KILL, "b", "it is over")
    assert kill.done_s - kill.time_s == pytest.approx(0.1)
    assert loaded.put_counts == {"NO_ANSWER": 2, "MESSAGE_ILLEGAL": 1, "NOT_SENT": 1, "PUT_OK": 1}


def test_a_torn_last_line_of_a_history_is_ignored() -> None:
    """A torn line in the middle is an error."""
    _, text = written_story()
    lines = text.splitlines()
    assert len(load_history([*lines, '{"type":"inv']).operations) == 5
    with pytest.raises(ValueError, match="not a line of a history"):
        load_history(['{"type":"inv', *lines])


def test_a_history_can_be_checked_from_its_file() -> None:
    """The checker finds the same violations as during the run."""
    sink = io.StringIO()
    story = Story()
    fresh = History(now_s=lambda: story.time_s, wall_ms=lambda: 0, sink=sink)
    for event in story.history.events:
        fresh.event(event.kind, event.node, begun_s=event.time_s, **event.details)
    story.history = fresh
    story.put(S.PUT_OK, logs="a")
    text = sink.getvalue()

    checker = Checker(load_history(text.splitlines()))
    for node, records in story.logs.items():
        checker.read_log(node, records)
    assert [violation.rule.value for violation in checker.verdict().violations] == [
        "not replicated"
    ]


def test_an_operation_is_completed_once() -> None:
    """A second answer to one put is a bug in the world and fails an assertion."""
    story = Story()
    operation = story.put(S.PUT_OK)
    with pytest.raises(AssertionError, match="completed once"):
        story.history.complete(operation, S.PUT_OK)

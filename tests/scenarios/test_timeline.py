"""The timeline: puts in groups between what was done, each once, in the order of time."""

from __future__ import annotations

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.timeline import PUTS, Timeline
from tests.scenarios.stories import Story


def told(story: Story) -> list[str]:
    """The texts of what a timeline adds when the story goes on."""
    lines: list[str] = []
    timeline = Timeline(lambda entry: lines.append(entry.text))
    timeline.take(story.history, story.history.event(EventKind.SAY, text="now"))
    assert [entry.text for entry in timeline.entries] == lines
    return lines


def test_puts_that_ended_the_same_way_are_one_line() -> None:
    """A group has its number, its outcome and how long it took; a single put is told as one."""
    story = Story()
    for _ in range(3):
        story.put(S.PUT_OK)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.put(S.PUT_OK, wait=False)
    assert told(story) == [
        "a: 3 puts PUT_OK, 0.030 s",
        "a: put FLUSH_SLAVE_TIMEOUT, 1.000 s",
        "a: put PUT_OK (WAIT=false), 0.010 s",
        "now",
    ]


def test_outcomes_that_change_all_the_time_are_counted() -> None:
    """More than six changes between two events make one line."""
    story = Story()
    for _ in range(4):
        story.put(S.PUT_OK)
        story.put(S.SLAVE_NOT_AVAILABLE)
    assert told(story) == ["a: 8 puts: 4 PUT_OK, 4 SLAVE_NOT_AVAILABLE, 0.080 s", "now"]


def test_a_put_is_told_once_when_it_has_ended() -> None:
    """One that waits across an event is told behind it; nodes are told apart."""
    story = Story()
    timeline = Timeline()
    waiting = story.put(None)
    story.put(S.SERVICE_NOT_AVAILABLE, node="b")
    timeline.take(story.history, story.history.event(EventKind.SAY, text="now"))
    story.at(5.0)
    story.history.complete(waiting, S.FLUSH_SLAVE_TIMEOUT)
    timeline.add_puts(story.history)
    timeline.add_puts(story.history)
    assert [entry.text for entry in timeline.entries] == [
        "b: put SERVICE_NOT_AVAILABLE, 0.010 s",
        "now",
        "a: put FLUSH_SLAVE_TIMEOUT, 4.000 s",
    ]
    assert [entry.kind for entry in timeline.entries] == [PUTS, "say", PUTS]
    times = [entry.time_s for entry in timeline.entries]
    assert times == sorted(times)
    assert str(timeline.entries[2]) == "   5.000 s  a: put FLUSH_SLAVE_TIMEOUT, 4.000 s"

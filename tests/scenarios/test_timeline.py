"""The timeline: puts are grouped between events, listed once and ordered by time."""

from __future__ import annotations

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.timeline import PUTS, Timeline
from tests.scenarios.stories import Story


def texts_of(story: Story) -> list[str]:
    """Return the texts that a timeline adds at the story's next event."""
    lines: list[str] = []
    timeline = Timeline(lambda entry: lines.append(entry.text))
    timeline.take(story.history, story.history.event(EventKind.SAY, text="now"))
    assert [entry.text for entry in timeline.entries] == lines
    return lines


def test_puts_with_the_same_outcome_share_a_line() -> None:
    """A group shows its size, outcome and duration; a single put shows no size."""
    story = Story()
    for _ in range(3):
        story.put(S.PUT_OK)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.put(S.PUT_OK, wait=False)
    assert texts_of(story) == [
        "a: 3 puts PUT_OK, 0.030 s",
        "a: put FLUSH_SLAVE_TIMEOUT, 1.000 s",
        "a: put PUT_OK (WAIT=false), 0.010 s",
        "now",
    ]


def test_alternating_outcomes_are_counted_in_one_line() -> None:
    """This applies to more than six changes of outcome between two events."""
    story = Story()
    for _ in range(4):
        story.put(S.PUT_OK)
        story.put(S.SLAVE_NOT_AVAILABLE)
    assert texts_of(story) == ["a: 8 puts: 4 PUT_OK, 4 SLAVE_NOT_AVAILABLE, 0.080 s", "now"]


def test_a_put_is_listed_once_after_its_end() -> None:
    """A put that waits during an event is listed after it; each node has its own line."""
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

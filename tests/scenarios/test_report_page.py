"""The report of a run: well-formed, self-contained, and all foreign text is escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import attrs
import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.checker import Rule, Violation
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.judge.timeline import Timeline
from hastore_scenarios.report.drawing import draw
from hastore_scenarios.report.lanes import (
    BINS,
    CUT,
    DOWN,
    FROZEN,
    MASTER,
    OPEN,
    SICK,
    SLAVE,
    Lane,
    LaneSpan,
    Picture,
    PutRow,
)
from hastore_scenarios.report.page import render_page
from hastore_scenarios.report.run_folder import write_run
from tests.scenarios.stories import GroupStory, Story

EVIL = "<script>alert('\"&')</script>\x00\x1b[31m\ud800"
VOID = {"meta", "br", "link", "img", "input"}


def eventful() -> Story:
    """Return a story: its master is killed, its slave is frozen, cut off and promoted."""
    story = Story()
    for _ in range(20):
        story.put(S.PUT_OK)
    story.at(2.0)
    story.event(EventKind.PAUSE, "b", text="b: frozen (SIGSTOP)")
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.event(EventKind.RESUME, "b", text="b: runs on")
    story.event(EventKind.LINK, "b", text="link b to a: cut", mode="cut", flows=False)
    story.at(4.0)
    story.event(EventKind.LINK, "b", text="link b to a: open, reset", mode="open", flows=True)
    story.event(EventKind.LINK, "b", text="link b to a: open", mode="open", flows=True)
    story.event(EventKind.DISK, "a", text="disk of a: full", fault="full")
    story.at(5.0)
    story.event(EventKind.DISK, "a", text="disk of a: well", fault="heal")
    story.event(EventKind.SAY, text=EVIL)
    story.event(EventKind.EXPECT, text=f"NOT AS EXPECTED: {EVIL}")
    story.event(EventKind.EXPECT, text="as expected: all is well")
    story.event(EventKind.KILL, "a", text="a: killed (SIGKILL)")
    story.event(EventKind.STOP, "b", text="b: stopped (SIGTERM)")
    story.event(EventKind.DISK, "a", text="disk of a: an empty one", fault="wipe")
    story.at(6.0)
    story.start_master("b", log_end=2_000)
    story.put(S.SLAVE_NOT_AVAILABLE, node="b", logs="b")
    story.put(None, node="b", logs="b")
    story.end()
    return story


def result_of(story: Story, **changes) -> ScenarioResult:
    """Return the result of a run of that story."""
    timeline = Timeline()
    for event in story.history.events:
        timeline.take(story.history, event)
    values = {
        "name": "my-story",
        "title": "Mine",
        "proves": "this",
        "failure": None,
        "verdict": story.checker().verdict(),
        "timeline": tuple(timeline.entries),
        "put_counts": story.history.put_counts,
        "duration_s": 7.0,
        "directory": None,
        "history": story.history,
    }
    return ScenarioResult(**{**values, **changes})


class Balance(HTMLParser):
    """A parser that asserts that elements are closed in the right order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        """Open an element."""
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Record an empty element."""
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        """Close an element."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Collect text."""
        self.text += data


def parsed(page: str) -> Balance:
    """Parse a page and check that all its elements are closed."""
    reader = Balance()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def evil_result() -> ScenarioResult:
    """Return a result in which every text of a user or a node is markup."""
    story = eventful()
    verdict = story.checker().verdict()
    verdict = attrs.evolve(verdict, violations=(Violation(Rule.DAMAGED, EVIL),))
    return result_of(
        story,
        name=EVIL,
        title=EVIL,
        proves=EVIL,
        failure=EVIL,
        verdict=verdict,
        directory=EVIL,
        outputs={EVIL: EVIL},
        world="sim",
        seed=7,
    )


@pytest.mark.parametrize("make", [lambda: result_of(eventful()), evil_result])
def test_the_page_is_well_formed_and_self_contained(make) -> None:
    """Elements are balanced, the drawing is XML, and there are no scripts and no addresses."""
    page = render_page(make())
    reader = parsed(page)
    assert {"script", "iframe", "object", "link", "img"}.isdisjoint(reader.seen)
    names = {name for name, _ in reader.attributes}
    assert {"src", "href", "onclick", "onload", "action"}.isdisjoint(names)
    assert not re.search(r"https?:|url\((?!#)|@import", page)
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    ET.fromstring(svg)
    page.encode()  # no lone surrogates
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page)


def test_texts_of_users_and_nodes_are_escaped() -> None:
    """Text that looks like markup is displayed literally, wherever it occurs."""
    text = parsed(render_page(evil_result())).text
    assert text.count("<script>alert('\"&')</script>") >= 8


def test_the_page_shows_verdict_rto_rpo_timeline_and_outcomes() -> None:
    """Every timeline entry and every outcome's count is there."""
    result = result_of(eventful())
    text = parsed(render_page(result)).text
    assert "held" in text
    assert "RTO" in text
    assert "of 20 acknowledged are gone" in text
    assert "no PUT_OK again" in text
    for entry in result.timeline:
        words = entry.text.removeprefix(f"{entry.node}: ")
        assert "".join(c if c.isprintable() else " " for c in words) in text
    assert "PUT_OK 20" in text
    assert "NO_ANSWER 1" in text


def test_a_page_can_be_made_of_an_empty_history() -> None:
    """The story had no events and no puts, and its logs could not be read."""
    story = Story(slave=False)
    story.history.events.clear()
    empty = result_of(story, verdict=None, failure="it never began")
    text = parsed(render_page(empty)).text
    assert "it never began" in text
    assert "no puts" in text


def test_lanes_show_each_nodes_roles_and_faults() -> None:
    """Roles follow one another without a gap; faults lie over them; links have their own lane."""
    picture = Picture.of(eventful().history)
    master, slave, link = picture.lanes
    assert [span.kind for span in master.spans] == [MASTER, DOWN, SICK, SICK]
    assert [(span.begin_s, span.end_s) for span in master.spans[:2]] == [(0.0, 5.0), (5.0, 6.02)]
    assert [span.label for span in master.spans[2:]] == ["disk: full", "wipe"]
    assert [span.kind for span in slave.spans] == [SLAVE, DOWN, MASTER, FROZEN]
    assert (slave.spans[3].begin_s, slave.spans[3].end_s) == (2.0, 3.0)
    assert (link.name, link.is_link) == ("b → a", True)
    assert [span.kind for span in link.spans] == [OPEN, CUT, OPEN, CUT]
    assert link.spans[3].label == "reset"
    assert {row.label: row.count for row in picture.puts} == {
        "PUT_OK": 20,
        "FLUSH_SLAVE_TIMEOUT": 1,
        "SLAVE_NOT_AVAILABLE": 1,
        "NO_ANSWER": 1,
    }
    assert all(sum(row.bins) == row.count and len(row.bins) == BINS for row in picture.puts)
    assert [mark.is_good for mark in picture.marks] == [None, False, True]


def drawn_texts(*spans: tuple[float, float, str, str], puts: tuple[PutRow, ...] = ()) -> list[str]:
    """Draw one lane and rows of puts over 10 s; return the drawn texts, not the tooltips."""
    made = tuple(
        LaneSpan(begin_s=begin_s, end_s=end_s, kind=kind, label=label, text=label)
        for begin_s, end_s, kind, label in spans
    )
    lane = Lane(name="a", is_link=False, spans=made)
    svg = draw(Picture(end_s=10.0, lanes=(lane,), marks=(), puts=puts), (), "")
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def test_a_label_is_drawn_whole_or_left_out() -> None:
    """A label without enough room is in the tooltip only; capitals count as wide."""
    assert "SLAVE of a" in drawn_texts((0.0, 5.0, SLAVE, "SLAVE of a"))
    assert "SLAVE of a" in drawn_texts(
        (0.0, 9.0, SLAVE, "SLAVE of a"), (5.0, 6.0, FROZEN, "frozen")
    )
    for begin_s in (0.5, 0.0):
        texts = drawn_texts((0.1, 9.0, SLAVE, "SLAVE of a"), (begin_s, 3.0, FROZEN, "frozen"))
        assert "frozen" in texts
        assert "SLAVE of a" not in texts
    # 84 px: room for ten small letters and the margins, not for these.
    assert "SYNC_MASTER" not in drawn_texts((0.0, 1.0, MASTER, "SYNC_MASTER"))


def test_the_number_of_puts_is_never_truncated() -> None:
    """Only the outcome's name may be shortened."""
    row = PutRow(label="CREATE_MAPPED_FILE_FAILED", count=1_234_567, bins=(1,) * BINS)
    (name,) = [text for text in drawn_texts(puts=(row,)) if text.startswith("CREATE_MAPPED")]
    assert name.endswith("… 1234567")
    row = PutRow(label="SERVICE_NOT_AVAILABLE", count=20, bins=(1,) * BINS)
    assert "SERVICE_NOT_AVAILABLE 20" in drawn_texts(puts=(row,))


def test_a_failure_of_several_lines_keeps_its_lines() -> None:
    """There is no line break after the box."""
    page = render_page(result_of(eventful(), failure="one\ntwo"))
    assert re.search(r"one<br>\s*two", page)
    assert not re.search(r"</section>\s*<br>", page)


def test_a_run_is_written_into_a_folder(tmp_path) -> None:
    """History, result and page replace earlier files of these names."""
    world = tmp_path / "world"
    world.mkdir()
    (world / "history.jsonl").write_text("{}\n")
    folder = tmp_path / "deep" / "er"
    for _ in range(2):
        page = write_run(result_of(eventful(), directory=str(world)), folder)
    assert page == folder / "report.html"
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl",
        "report.html",
        "result.json",
    ]
    assert (folder / "history.jsonl").read_text() == "{}\n"


def test_masters_of_a_group_are_drawn_with_their_epochs() -> None:
    """One after the other, or side by side."""
    story = GroupStory()
    story.at(2.0)
    story.hand_over("b", epoch=2, followers="c")
    story.at(3.0)
    story.settle("c")
    lanes = {
        lane.name: [span.label for span in lane.spans] for lane in Picture.of(story.history).lanes
    }
    assert lanes["a"] == ["SYNC_MASTER of epoch 1"]
    assert lanes["b"][-1] == "SYNC_MASTER of epoch 2"
    assert lanes["c"][-1].endswith("of b")

"""Outages: which fault began one, which PUT_OK ended it, and what is none."""

from __future__ import annotations

import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.outage import find_outages, find_unmeasured
from hastore_scenarios.judge.result import rto_text
from tests.scenarios.stories import Story


def test_a_run_without_faults_has_no_outage() -> None:
    """A master that answers SLAVE_NOT_AVAILABLE before it ever had a slave was not stopped."""
    story = Story(slave=False)
    story.put(S.SLAVE_NOT_AVAILABLE)
    story.put(S.PUT_OK, wait=False)
    story.end()
    assert find_outages(story.history) == ()


def test_from_the_kill_of_a_master_to_the_put_ok_of_its_successor() -> None:
    """RTO counts from the beginning of the kill, though no put was answered otherwise."""
    story = Story()
    story.put(S.PUT_OK)
    story.at(2.0)
    story.event(EventKind.KILL, "a", took_s=0.1)
    story.at(3.0)
    story.start_master("b", log_end=100)
    story.put(S.PUT_OK, node="b", took_s=0.5, logs="b")
    story.end()
    (outage,) = find_outages(story.history)
    assert outage.rto_s == pytest.approx(1.5)
    assert (outage.begin_s, outage.node, outage.puts) == (2.0, "a", 0)
    assert outage.to_dict()["rto_s"] == pytest.approx(1.5)


def test_from_a_frozen_slave_to_the_next_put_ok() -> None:
    """Weaker answers are counted; the fault is the last before the first of them was sent."""
    story = Story()
    story.event(EventKind.LINK, "b", mode="open", flows=True, text="link b to a: open, reset")
    story.put(S.PUT_OK)
    story.at(2.0)
    story.event(EventKind.PAUSE, "b")
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.event(EventKind.RESUME, "b")
    story.put(S.PUT_OK, took_s=0.25)
    story.end()
    (outage,) = find_outages(story.history)
    assert (outage.begin_s, outage.puts) == (2.0, 2)
    assert outage.rto_s == pytest.approx(2.25)


def test_a_fault_while_a_put_waits_is_the_one_that_it_ran_into() -> None:
    """The put had been sent already when the slave was killed."""
    story = Story()
    story.put(S.PUT_OK)
    put = story.put(None)
    story.at(2.0)
    story.event(EventKind.KILL, "b")
    story.at(2.5)
    story.history.complete(put, S.FLUSH_SLAVE_TIMEOUT)
    story.end()
    (outage,) = find_outages(story.history)
    assert (outage.begin_s, outage.ok_s, outage.rto_s) == (2.0, None, None)


def test_a_fault_that_stopped_nothing_is_no_outage() -> None:
    """One of two slaves is killed, and puts are PUT_OK as before; WAIT=false proves nothing."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "b")
    story.put(S.PUT_OK)
    story.put(S.SERVICE_NOT_AVAILABLE, wait=False)
    story.end()
    assert find_outages(story.history) == ()


def test_a_master_that_nobody_asks_any_more_is_not_measured() -> None:
    """The story ends with the kill, and what stops nodes behind its end is no fault."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "a")
    story.end()
    story.event(EventKind.STOP, "b")
    assert find_outages(story.history) == ()


def test_faults_within_an_outage_are_parts_of_it() -> None:
    """The master dies, its slave is frozen before it takes over: one outage, from the first."""
    story = Story()
    story.put(S.PUT_OK)
    story.at(2.0)
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.at(4.0)
    story.start_master("b", log_end=100)
    story.put(S.SLAVE_NOT_AVAILABLE, node="b", logs="b")
    story.put(S.PUT_OK, node="b", logs="b")
    story.event(EventKind.PAUSE, "b")
    story.at(6.0)
    story.event(EventKind.RESUME, "b")
    story.put(S.PUT_OK, node="b", logs="b")
    story.end()
    first, second = find_outages(story.history)
    assert (first.begin_s, first.puts) == (2.0, 1)
    assert first.rto_s == pytest.approx(2.02)
    assert second.rto_s == pytest.approx(1.99)


def test_a_lasting_fault_may_show_late() -> None:
    """A disk is full when the next file is needed: the outage begins with the put that felt it."""
    story = Story()
    story.event(EventKind.DISK, "b", text="disk of b: full", fault="full")
    story.event(EventKind.LINK, "b", mode="open", flows=True, text="link b to a: open, reset")
    story.put(S.PUT_OK)
    story.at(3.0)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.event(EventKind.DISK, "b", text="disk of b: well again", fault="heal")
    story.put(S.PUT_OK, took_s=0.5)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.end()
    (outage,) = find_outages(story.history)
    assert (outage.begin_s, outage.fault) == (3.0, "disk of b: full")
    assert outage.rto_s == pytest.approx(1.5)


def test_a_fault_after_which_nobody_put_anything_is_named_as_not_measured() -> None:
    """It is no outage, and it is not said that no fault ended acknowledgements."""
    story = Story()
    story.put(S.PUT_OK)
    assert find_unmeasured(story.history) is None
    assert rto_text((), None) == ("–", "no fault ended acknowledgements")
    story.event(EventKind.KILL, "a", text="a: killed (SIGKILL)")
    assert find_outages(story.history) == ()
    unmeasured = find_unmeasured(story.history)
    assert rto_text((), unmeasured) == (
        "–",
        "not measured: no put after a: killed (SIGKILL)",
    )
    story.start_master("b", log_end=100)
    story.put(S.PUT_OK, node="b", logs="b")
    assert find_unmeasured(story.history) is None

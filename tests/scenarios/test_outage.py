"""Outages: which fault starts one, which PUT_OK ends it, and what is not an outage."""

from __future__ import annotations

import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.outage import find_outages, find_unmeasured
from hastore_scenarios.judge.result import rto_text
from tests.scenarios.stories import GroupStory, Story


def test_a_run_without_faults_has_no_outage() -> None:
    """SLAVE_NOT_AVAILABLE before the master ever had a slave is no outage."""
    story = Story(slave=False)
    story.put(S.SLAVE_NOT_AVAILABLE)
    story.put(S.PUT_OK, wait=False)
    story.end()
    assert find_outages(story.history) == ()


def test_an_outage_lasts_from_a_masters_kill_to_the_next_put_ok() -> None:
    """The RTO counts from the start of the kill, even if no put failed."""
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


def test_an_outage_lasts_from_a_slaves_freeze_to_the_next_put_ok() -> None:
    """Puts without PUT_OK are counted; the cause is the last fault before the first of them."""
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


def test_a_fault_while_a_put_waits_is_its_cause() -> None:
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


def test_a_fault_without_effect_on_puts_is_no_outage() -> None:
    """A slave is killed and puts are still PUT_OK; a put with WAIT=false proves nothing."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "b")
    story.put(S.PUT_OK)
    story.put(S.SERVICE_NOT_AVAILABLE, wait=False)
    story.end()
    assert find_outages(story.history) == ()


def test_a_master_without_later_puts_is_not_measured() -> None:
    """The story ends with the kill, and stopping the nodes after its end is no fault."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "a")
    story.end()
    story.event(EventKind.STOP, "b")
    assert find_outages(story.history) == ()


def test_faults_within_an_outage_belong_to_it() -> None:
    """A master's kill and the stop of its slave are one outage; a later freeze is a second one."""
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


def test_a_lasting_fault_may_take_effect_later() -> None:
    """A full disk matters when the next file is needed: the outage begins with the affected put."""
    story = Story()
    story.event(EventKind.DISK, "b", text="disk of b: full", fault="full")
    story.event(EventKind.LINK, "b", mode="open", flows=True, text="link b to a: open, reset")
    story.put(S.PUT_OK)
    story.at(3.0)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.event(EventKind.DISK, "b", text="disk of b: healed", fault="heal")
    story.put(S.PUT_OK, took_s=0.5)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.end()
    (outage,) = find_outages(story.history)
    assert (outage.begin_s, outage.fault) == (3.0, "disk of b: full")
    assert outage.rto_s == pytest.approx(1.5)


def test_a_fault_without_later_puts_is_reported_as_not_measured() -> None:
    """It is no outage, but the text does not claim that no fault ended acknowledgements."""
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


def test_the_coordinator_is_a_fault_until_it_is_back() -> None:
    """What a person asks of it is none."""
    story = Story()
    story.put(S.PUT_OK)
    story.event(EventKind.COORDINATOR, text="etcd: a person asks: a switchover", fault=False)
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=2.0)
    assert find_outages(story.history) == ()
    story.put(S.PUT_OK)
    story.event(EventKind.COORDINATOR, text="etcd: stopped", fault=True)
    begin_s = story.time_s
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=2.0)
    story.event(EventKind.COORDINATOR, text="etcd: started", fault=False)
    story.put(S.PUT_OK)
    (outage,) = find_outages(story.history)
    assert (outage.begin_s, outage.fault, outage.node) == (begin_s, "etcd: stopped", None)


def test_another_group_ends_no_outage() -> None:
    """Nor does its fault begin one."""
    story = GroupStory()
    story.add_group()
    story.put(S.PUT_OK)
    story.put(S.PUT_OK, node="d", logs="de")
    story.at(3.0)
    story.event(EventKind.KILL, "a")
    story.put(S.PUT_OK, node="d", logs="de")
    story.at(5.0)
    story.hand_over("b", epoch=2, followers="c")
    story.put(S.PUT_OK, node="b", logs="bc")
    story.at(6.0)
    story.event(EventKind.KILL, "d")
    story.put(S.PUT_OK, node="b", logs="bc")
    story.at(8.0)
    story.lead("e", epoch=2, group="other")
    story.put(S.PUT_OK, node="e", logs="e")
    story.end()
    found = find_outages(story.history)
    assert [(outage.node, outage.begin_s) for outage in found] == [("a", 3.0), ("d", 6.0)]
    assert [round(outage.rto_s or 0.0, 1) for outage in found] == [2.0, 2.0]


def test_a_fault_is_not_measured_by_another_groups_puts() -> None:
    """Only what was put to the same group would show how long it took."""
    story = GroupStory()
    story.add_group()
    story.put(S.PUT_OK, node="d", logs="de")
    story.at(3.0)
    story.event(EventKind.KILL, "d", text="d: killed")
    story.put(S.PUT_OK)
    story.end()
    assert find_outages(story.history) == ()
    assert find_unmeasured(story.history) == "d: killed"

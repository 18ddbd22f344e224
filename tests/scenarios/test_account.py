"""The world's account: intervals and lineages, read from events."""

from __future__ import annotations

import pytest

from hastore_scenarios.judge.account import FOREVER, Account
from hastore_scenarios.judge.history import EventKind
from tests.scenarios.stories import Story


def account_of(story: Story) -> Account:
    """Return the account of a story's events."""
    return Account.of(story.history.events)


def test_outer_bound_starts_early_and_ends_late() -> None:
    """A slave could acknowledge from the beginning of its start until the end of its kill."""
    story = Story(slave=False)
    story.at(1.0)
    story.event(EventKind.START_SLAVE, "b", 0.5, master="a", log_end=0, flows=True)
    story.at(3.0)
    story.event(EventKind.KILL, "b", took_s=0.5)
    (interval,) = account_of(story).could
    assert (interval.begin_s, interval.end_s) == (1.0, 3.5)


def test_inner_bound_starts_late_and_ends_early() -> None:
    """A slave was healthy from the observation until the beginning of the next fault."""
    story = Story()
    story.at(3.0)
    story.event(EventKind.PAUSE, "b", took_s=0.5)
    (interval,) = account_of(story).healthy
    assert (interval.begin_s, interval.end_s) == (1.0, 3.0)


def test_a_frozen_slave_is_not_healthy() -> None:
    """A status that shows it as healthy after the freeze does not count."""
    story = Story()
    story.event(EventKind.PAUSE, "b")
    story.event(EventKind.HEALTHY, "b")
    story.at(9.0)
    assert account_of(story).who_was_healthy("a", 5.0, 6.0) is None


def test_a_resumed_and_healed_slave_could_acknowledge_again() -> None:
    """A slave that is both frozen and cut off must be resumed and its link healed."""
    story = Story()
    story.event(EventKind.PAUSE, "b")
    story.event(EventKind.LINK, "b", mode="cut", flows=False)
    story.at(5.0)
    story.event(EventKind.RESUME, "b")
    story.at(7.0)
    story.event(EventKind.LINK, "b", mode="open", flows=True)
    account = account_of(story)
    assert account.who_could_acknowledge("a", 5.5, 6.5) is None
    assert account.who_could_acknowledge("a", 6.5, 7.5) == "b"
    assert account.who_could_acknowledge("other", 6.5, 7.5) is None


def test_a_slave_started_behind_a_cut_link_could_not_acknowledge() -> None:
    """A link keeps its mode when the slave restarts."""
    story = Story(slave=False)
    story.event(EventKind.START_SLAVE, "b", master="a", log_end=0, flows=False)
    assert account_of(story).could == []


def test_a_masters_role_is_that_of_its_run_at_the_time() -> None:
    """Two runs of one directory may have different roles."""
    story = Story(role="SYNC_MASTER", slave=False)
    story.at(5.0)
    story.event(EventKind.STOP, "a", took_s=1.0)
    story.start_master("a", role="ASYNC_MASTER")
    account = account_of(story)
    first, second = account.term_at("a", 4.0), account.term_at("a", 7.0)
    assert first is not None
    assert second is not None
    assert (first.role.value, first.end_begun_s, first.end_s) == ("SYNC_MASTER", 5.0, 6.0)
    assert (second.role.value, second.end_s) == ("ASYNC_MASTER", FOREVER)
    assert account.term_at("b", 7.0) is None


@pytest.mark.parametrize(
    ("begin_s", "end_s", "disturbed"), [(0.0, 4.9, False), (4.0, 5.0, True), (5.5, 6.5, True)]
)
def test_a_master_is_disturbed_while_it_stops(
    begin_s: float, end_s: float, disturbed: bool
) -> None:
    """It may give up waits from the signal on."""
    story = Story(slave=False)
    story.at(5.0)
    story.event(EventKind.STOP, "a", took_s=1.0)
    term = account_of(story).term_at("a", 0.0)
    assert term is not None
    assert term.was_disturbed(begin_s, end_s) is disturbed


def test_a_frozen_master_is_disturbed() -> None:
    """The times of its answers mean nothing while it is frozen."""
    story = Story(slave=False)
    story.at(5.0)
    story.event(EventKind.PAUSE, "a")
    story.at(6.0)
    story.event(EventKind.RESUME, "a")
    term = account_of(story).term_at("a", 0.0)
    assert term is not None
    assert [term.was_disturbed(*times) for times in ((1, 4), (5.5, 5.6), (7, 8))] == [
        False,
        True,
        False,
    ]


def test_slaves_share_the_lineage_of_their_master() -> None:
    """All copies of one master's log must agree everywhere."""
    story = Story()
    story.start_slave("c", "a")
    assert account_of(story).must_agree_up_to("b", "c") == FOREVER


def test_lineages_diverge_at_each_promotion() -> None:
    """After two promotions, each pair of logs agrees up to the first promotion that divides it."""
    story = Story()
    story.start_slave("c", "a")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.start_master("b", log_end=500)
    story.event(EventKind.STOP, "c")
    story.start_slave("c", "b", log_end=400)
    story.event(EventKind.KILL, "b")
    story.event(EventKind.STOP, "c")
    story.start_master("c", log_end=900)
    account = account_of(story)
    assert account.must_agree_up_to("a", "b") == 500
    assert account.must_agree_up_to("a", "c") == 500
    assert account.must_agree_up_to("b", "c") == 900
    assert account.successor_of("a") == "c"
    assert account.successor_of("c") is None


def test_a_former_master_that_is_ahead_stays_on_its_own_lineage() -> None:
    """A log that continued after the promotion offset is no copy of the new master's."""
    story = Story()
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.start_master("b", log_end=500)
    story.start_slave("a", "b", log_end=501)
    story.end()
    account = account_of(story)
    assert account.must_agree_up_to("a", "b") == 500
    assert account.up_at_end == {}
    assert account.whole_at_end == {"b"}


def test_a_former_master_that_is_not_ahead_joins_the_new_lineage() -> None:
    """A log that ends at or below the promotion offset becomes a copy of the new master's."""
    story = Story()
    story.event(EventKind.KILL, "a")
    story.event(EventKind.STOP, "b")
    story.start_master("b", log_end=500)
    story.start_slave("a", "b", log_end=500)
    story.end()
    account = account_of(story)
    assert account.must_agree_up_to("a", "b") == FOREVER
    assert account.up_at_end == {"a": "b"}


def test_a_slave_of_a_dead_master_does_not_count_as_up() -> None:
    """It has no master to catch up with at the end."""
    story = Story()
    story.event(EventKind.KILL, "a")
    story.end()
    account = account_of(story)
    assert account.up_at_end == {}
    assert account.whole_at_end == set()


def test_an_empty_disk_joins_any_lineage() -> None:
    """A log of another cluster remains apart; the same node with a new disk becomes a copy."""
    story = Story()
    story.start_master("c", log_end=0)
    story.start_slave("c", "a", log_end=700)
    assert account_of(story).must_agree_up_to("c", "a") == 0
    story.event(EventKind.DISK, "c", fault="wipe")
    story.start_slave("c", "a", log_end=None)
    assert account_of(story).must_agree_up_to("c", "a") == FOREVER

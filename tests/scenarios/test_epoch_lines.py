"""Which epochs a node's log may have, from what happened to it."""

from __future__ import annotations

from math import inf

import pytest

from hastore_scenarios.judge.epoch_lines import EpochLines, agreement, holds


@pytest.fixture
def lines() -> EpochLines:
    """Return the lines of a and b, which are in step in epoch 1."""
    found = EpochLines()
    found.led("a", 1, 0, [])
    found.trailed("b", "a")
    found.in_step("b", "a")
    return found


def test_nodes_in_step_agree_everywhere(lines: EpochLines) -> None:
    """A node that has not copied anything yet need not agree."""
    assert lines.agree_up_to("a", "b") == inf
    assert lines.agree_up_to("a", "c") == 0


def test_a_promoted_node_agrees_up_to_its_epoch(lines: EpochLines) -> None:
    """The former master may have a tail of its own, also after it was told to follow."""
    lines.in_step("c", "a")
    assert lines.led("b", 2, 500, ["c"]) == {((1, 0), (2, 500))}
    assert lines.agree_up_to("a", "b") == 500
    assert lines.agree_up_to("a", "c") == 500  # c may have copied b's epoch
    lines.trailed("a", "b")
    assert lines.agree_up_to("a", "b") == 500
    lines.in_step("a", "b")
    assert lines.agree_up_to("a", "b") == inf


def test_epochs_without_a_byte_are_dropped(lines: EpochLines) -> None:
    """A later epoch that begins where the last one did takes its place."""
    lines.led("b", 2, 500, [])
    assert lines.led("b", 3, 500, []) == {((1, 0), (3, 500))}


def test_a_master_that_had_not_cut_yet_has_one_of_two_lines(lines: EpochLines) -> None:
    """It was told to follow, and promoted: nobody saw whether it had cut by then."""
    lines.led("b", 2, 500, [])
    lines.trailed("a", "b")
    found = lines.led("a", 3, 900, ["c"])
    assert found == {((1, 0), (3, 900)), ((1, 0), (2, 500), (3, 900))}
    assert lines.agree_up_to("a", "b") == 500
    lines.in_step("c", "a")
    assert lines.agree_up_to("a", "c") == inf


def test_a_new_node_has_its_masters_line_before_it_leads(lines: EpochLines) -> None:
    """An empty log would end at 0."""
    lines.trailed("c", "a")
    assert lines.agree_up_to("a", "c") == 0
    assert lines.led("c", 2, 100, []) == {((1, 0), (2, 100))}


@pytest.mark.parametrize(
    ("epoch", "offset", "found"), [(1, 0, True), (1, 500, False), (2, 500, True), (3, 0, False)]
)
def test_a_line_holds_what_was_written_before_the_next_epoch(
    epoch: int, offset: int, found: bool
) -> None:
    """The last epoch goes on for ever."""
    assert holds(((1, 0), (2, 500)), epoch, offset) is found


def test_lines_agree_up_to_their_first_difference() -> None:
    """One that goes on where the other ends agrees up to its next epoch."""
    assert agreement(((1, 0), (2, 500)), ((1, 0), (3, 400))) == 400
    assert agreement(((1, 0),), ((1, 0), (3, 400))) == 400
    assert agreement(((1, 0),), ((1, 0),)) == inf

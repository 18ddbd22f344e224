"""The checker's rules in a replica group: several masters, each with an epoch."""

from __future__ import annotations

import pytest

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.presence import GROUP_RULES, count_broken
from tests.scenarios.stories import SIZE, GroupStory, broken


def test_a_correct_failover_breaks_no_rule() -> None:
    """What was only stored by the former master is cut; what was PUT_OK is everywhere."""
    story = GroupStory()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "b")
    story.event(EventKind.KILL, "c")
    tail = story.put(S.SLAVE_NOT_AVAILABLE, logs="a")
    story.event(EventKind.KILL, "a")
    story.hand_over("b", epoch=2, followers="c")
    del story.logs["a"][-1]
    story.put(S.PUT_OK, node="b")
    story.follow("a", "b", epoch=2)
    story.settle("a", "c")
    assert story.broken() == {}
    checker = story.checker()
    checker.read_cut("a", [tail.key, "never sent"])
    assert broken(checker.verdict()) == {}


def test_put_ok_that_a_later_master_lacks_is_lost() -> None:
    """Its epoch begins where the message should be."""
    story = GroupStory()
    story.put(S.PUT_OK)
    story.put(S.PUT_OK, logs="ac")
    story.event(EventKind.KILL, "a")
    story.hand_over("b", epoch=2, followers="c")
    story.settle("c")
    verdict = story.checker().verdict()
    assert broken(verdict) == {"acknowledged lost": 1}
    assert "b became master of epoch 2 at 100, without it" in verdict.violations[0].text


def test_put_ok_by_a_master_that_was_replaced_is_lost() -> None:
    """The former master was not told, and acknowledges after the promotion what it has alone."""
    story = GroupStory()
    story.put(S.PUT_OK)
    story.hand_over("b", epoch=2, followers="c")
    story.at(2.0)
    story.put(S.PUT_OK, node="a", logs="a")
    story.settle("c")
    assert story.broken() == {"acknowledged lost": 1, "false ok": 1, "not replicated": 1}


def test_a_late_answer_for_what_the_new_master_has_is_true() -> None:
    """The former master had all acks before it was replaced, and answers when it goes on."""
    story = GroupStory()
    operation = story.put(None)
    story.hand_over("b", epoch=2, followers="c")
    story.history.complete(operation, S.PUT_OK, physic_offset=0, next_offset=SIZE, queue_offset=0)
    story.settle("c")
    assert story.broken() == {}


def test_stored_may_go_with_a_later_epoch_only() -> None:
    """Without another master the message must stay in the log of the one that stored it."""
    story = GroupStory()
    story.event(EventKind.KILL, "c")
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0, logs="")
    assert story.broken() == {"stored not there": 1}


def test_stored_must_stay_if_the_later_master_has_it() -> None:
    """Its epoch begins after the message."""
    story = GroupStory()
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0, logs="bc")
    story.event(EventKind.KILL, "a")
    story.hand_over("b", epoch=2, followers="c")
    story.settle("c")
    assert story.broken() == {"stored not there": 1}


@pytest.mark.parametrize("is_ok", [True, False])
def test_put_ok_among_cut_messages_is_found(is_ok: bool) -> None:
    """Whatever happens to the message afterwards."""
    story = GroupStory()
    operation = story.put(S.PUT_OK if is_ok else S.SLAVE_NOT_AVAILABLE)
    checker = story.checker()
    checker.read_cut("c", [operation.key])
    assert broken(checker.verdict()) == ({"acknowledged cut": 1} if is_ok else {})


def test_put_ok_of_an_async_master_may_be_cut() -> None:
    """It waits for nobody, so a later master may lack what it has answered."""
    story = GroupStory()
    story.lead("a", epoch=2, copies_min=1, role="ASYNC_MASTER")
    operation = story.put(S.PUT_OK, logs="a")
    story.event(EventKind.KILL, "a")
    del story.logs["a"][-1]
    story.hand_over("b", epoch=3, followers="c")
    story.settle("c")
    checker = story.checker()
    checker.read_cut("a", [operation.key])
    assert broken(checker.verdict()) == {}


def test_put_ok_with_a_number_of_replicas_may_be_lost_and_cut() -> None:
    """A later master may be none of those nodes; until then as many as the number have it."""
    story = GroupStory()
    story.lead("a", epoch=2, is_all=False)
    operation = story.put(S.PUT_OK, logs="ab")
    story.event(EventKind.KILL, "a")
    story.hand_over("c", epoch=3, followers="b")
    del story.logs["b"][-1]
    story.settle("b")
    checker = story.checker()
    checker.read_cut("b", [operation.key])
    assert broken(checker.verdict()) == {}
    story = GroupStory()
    story.lead("a", epoch=2, is_all=False)
    story.put(S.PUT_OK, logs="a")
    story.settle("b", "c")
    assert story.broken() == {"not replicated": 1}


def test_a_copy_of_a_message_that_was_sent_twice_may_be_cut() -> None:
    """The other one is what its answer is about."""
    story = GroupStory()
    operation = story.put(S.PUT_OK, sent_count=2)
    story.settle("b", "c")
    checker = story.checker()
    checker.read_cut("c", [operation.key])
    assert broken(checker.verdict()) == {}


def test_put_ok_must_be_on_all_nodes_in_step() -> None:
    """At the end they have their master's log."""
    story = GroupStory()
    story.put(S.PUT_OK, logs="ab")
    story.settle("b", "c")
    assert story.broken() == {"acknowledged lost": 1}


def test_put_ok_needs_as_many_nodes_as_its_master_waits_for() -> None:
    """One that could not acknowledge does not count, nor does an observer."""
    story = GroupStory()
    story.event(EventKind.KILL, "b")
    story.event(EventKind.START_SLAVE, "o", master="a", log_end=0, flows=True, observes=True)
    story.event(EventKind.PAUSE, "c")
    story.at(2.0)
    story.put(S.PUT_OK)
    assert story.broken() == {"false ok": 1}


def test_a_master_that_is_enough_needs_nobody() -> None:
    """Its set begins with itself, as min_in_sync_replicas = 1 allows."""
    story = GroupStory()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "a")
    story.hand_over("b", epoch=2, followers="", copies_min=1)
    story.put(S.PUT_OK, node="b", logs="b")
    story.end()
    assert story.broken() == {}


def test_a_timeout_is_early_unless_the_master_steps_down() -> None:
    """It answers the puts that wait before it gives up its role."""
    story = GroupStory()
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=0.1)
    assert story.broken() == {"answered too early": 1}
    story = GroupStory()
    operation = story.put(None)
    story.follow("a", None, epoch=1)
    story.history.complete(
        operation, S.FLUSH_SLAVE_TIMEOUT, physic_offset=0, next_offset=SIZE, queue_offset=0
    )
    assert story.broken() == {}


@pytest.mark.parametrize(("least", "found"), [(1, {"impossible status": 1}), (2, {})])
def test_too_few_replicas_is_an_answer_of_strict_groups(least: int, found: dict[str, int]) -> None:
    """With min_in_sync_replicas = 1 the master itself is enough."""
    story = GroupStory()
    story.lead("a", epoch=2, least=least)
    story.put(S.IN_SYNC_REPLICAS_NOT_ENOUGH)
    assert story.broken() == found


def test_nodes_in_step_must_agree_everywhere_others_up_to_a_later_epoch() -> None:
    """A former master that did not come back may differ after the next epoch's start."""
    story = GroupStory()
    story.put(S.PUT_OK)
    story.event(EventKind.KILL, "a")
    story.hand_over("b", epoch=2, followers="c")
    story.settle("c")
    checker = story.checker()
    checker.compared("b", "c", 10 * SIZE)
    checker.compared("a", "b", SIZE)
    assert broken(checker.verdict()) == {"diverged bytes": 1}
    checker.compared("a", "c", SIZE - 1)
    assert broken(checker.verdict())["diverged bytes"] == 2


def test_a_node_that_is_not_in_step_at_the_end_is_named() -> None:
    """A node that follows cuts what its master lacks, and must catch up."""
    story = GroupStory()
    story.put(S.PUT_OK)
    story.settle("b")
    assert story.broken() == {"not caught up": 1}


def test_a_join_compares_what_it_knows_of_a_group() -> None:
    """A message that was stored and cut is no violation, and a join cannot tell."""
    story = GroupStory()
    tally = {
        "node": "a",
        "outcome": "unknown",
        "status": "SLAVE_NOT_AVAILABLE",
        "promised": True,
        "present": "00",
        "extra": 0,
        "altered": 0,
        "expired": False,
        "wiped": False,
        "began": 0,
        "puts": 3,
    }
    counts = count_broken([tally], 2, ["a", "b"], story.checker().account)
    assert list(counts) == list(GROUP_RULES)
    assert sum(counts.values()) == 2


def test_two_groups_have_epochs_and_logs_of_their_own() -> None:
    """A later epoch of one need not have what the other has acknowledged, nor the same bytes."""
    story = GroupStory()
    story.add_group()
    story.put(S.PUT_OK, node="d", logs="de")
    story.put(S.PUT_OK, logs="abc")
    story.event(EventKind.KILL, "a")
    story.hand_over("b", epoch=2, followers="c")
    story.settle("c", "e")
    checker = story.checker()
    for other in "abc":
        checker.compared("d", other, 0)
    verdict = checker.verdict()
    assert broken(verdict) == {}
    assert verdict.loss is not None
    assert (verdict.loss.acknowledged, verdict.loss.gone) == (2, 0)
    checker.compared("d", "e", 0)
    assert broken(checker.verdict()) == {"diverged bytes": 1}


def test_two_groups_need_their_own_copies() -> None:
    """What a group's slave lacks is no better for being in the other group's logs."""
    story = GroupStory()
    story.add_group()
    story.put(S.PUT_OK, node="d", logs="dab")
    story.settle("b", "c", "e")
    verdict = story.checker().verdict()
    assert broken(verdict) == {"acknowledged lost": 1, "not replicated": 1, "never sent": 2}
    texts = [violation.text for violation in verdict.violations]
    assert any("sent to d of another group" in text for text in texts), texts
    assert any("not in the logs of ['e']" in text for text in texts), texts


def test_an_observer_has_the_log_of_its_group() -> None:
    """Not that of another one."""
    story = GroupStory()
    story.add_group()
    story.logs["o"] = []
    story.event(
        EventKind.START_SLAVE, "o", master="d", observes=True, epoch=1, flows=True, log_end=None
    )
    story.event(EventKind.HEALTHY, "o")
    story.put(S.PUT_OK, node="d", logs="deo")
    story.settle("b", "c", "e")
    checker = story.checker()
    checker.compared("a", "o", 0)
    assert broken(checker.verdict()) == {"not caught up": 1}
    checker.compared("d", "o", 0)
    assert broken(checker.verdict()) == {"not caught up": 2, "diverged bytes": 1}

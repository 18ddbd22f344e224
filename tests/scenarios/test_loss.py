"""What is gone of a run, in messages: promised or not, found elsewhere or nowhere."""

from __future__ import annotations

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.result import loss_text
from tests.scenarios.stories import SIZE, Story


def test_an_async_master_that_dies_loses_what_no_slave_had() -> None:
    """No promise is broken, and the loss is counted all the same; the old log still has them."""
    story = Story(role="ASYNC_MASTER")
    story.put(S.PUT_OK)
    story.put(S.PUT_OK, logs="a")
    story.put(S.PUT_OK, logs="a", wait=False)
    story.event(EventKind.KILL, "a")
    story.start_master("b", role="ASYNC_MASTER", log_end=100)
    story.put(S.PUT_OK, node="b", logs="b")
    story.end()
    verdict = story.checker().verdict()
    assert verdict.ok
    loss = verdict.loss
    assert (loss.acknowledged, loss.gone, loss.elsewhere, loss.unwaited) == (4, 2, 2, 1)
    assert loss.gone_ops == (1, 2)
    assert verdict.to_dict()["rpo"]["gone"] == 2


def test_messages_of_unknown_outcome_are_counted_by_whether_they_are_there() -> None:
    """Weaker answers and none at all are unknown; what was refused is not."""
    story = Story()
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.put(None)
    story.put(None, logs="")
    story.put(S.SERVICE_NOT_AVAILABLE)
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.gone) == (0, 0)
    assert (loss.unknown, loss.unknown_there) == (3, 2)


def test_a_log_that_is_no_more_has_lost_everything() -> None:
    """Where an heir's log was not even found, nothing is in it."""
    story = Story()
    story.put(S.PUT_OK)
    del story.logs["a"]
    checker = story.checker()
    loss = checker.verdict().loss
    assert (loss.gone, loss.elsewhere) == (1, 1)


def test_what_has_expired_is_not_lost() -> None:
    """Messages whose files an operator's rules removed are counted apart, whatever their answer."""
    story = Story(slave=False)
    story.put(S.PUT_OK, logs="")
    story.put(S.SLAVE_NOT_AVAILABLE, logs="")
    story.put(S.PUT_OK)
    story.history.operations[1].physic_offset = SIZE
    story.event(EventKind.DISK, "a", fault="expire", min_offset=2 * SIZE)
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.gone, loss.expired, loss.unknown) == (2, 0, 2, 0)


def test_what_the_story_wiped_is_counted_apart() -> None:
    """A disk that was taken away with its node is no loss of a cluster's; what came later is."""
    story = Story(slave=False, role="ASYNC_MASTER")
    story.put(S.PUT_OK, logs="")
    story.event(EventKind.DISK, "a", fault="wipe")
    story.put(S.PUT_OK, logs="")
    story.put(S.PUT_OK)
    verdict = story.checker().verdict()
    loss = verdict.loss
    assert (loss.acknowledged, loss.wiped, loss.gone) == (3, 1, 1)
    assert loss.gone_ops == (1,)
    assert "1 were wiped by the story" in loss_text(loss)[1]


def test_a_wiped_master_that_joins_another_has_no_heir() -> None:
    """It follows another log with its new disk; that one's master was never to have the old one."""
    story = Story(slave=False, role="ASYNC_MASTER")
    story.start_master("b", role="ASYNC_MASTER", log_end=0)
    story.put(S.PUT_OK, logs="")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.DISK, "a", fault="wipe")
    story.start_slave("a", master="b", log_end=None)
    story.end()
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.wiped, loss.gone) == (1, 1, 0)


def test_a_wiped_master_with_an_heir_has_lost_what_the_heir_lacks() -> None:
    """Its slave was promoted: what that one does not have is gone, whatever befell the old disk."""
    story = Story(role="ASYNC_MASTER")
    story.put(S.PUT_OK, logs="")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.DISK, "a", fault="wipe")
    story.start_master("b", role="ASYNC_MASTER", log_end=0)
    story.end()
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.wiped, loss.gone) == (1, 0, 1)

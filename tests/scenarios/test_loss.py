"""Lost messages of a run: acknowledged or not, in another log or in none."""

from __future__ import annotations

from hastore.status import PutMessageStatus as S
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.result import loss_text
from tests.scenarios.stories import SIZE, Story


def test_messages_lost_with_an_async_master_are_counted() -> None:
    """No rule is broken, and the old master's log still has the messages."""
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


def test_messages_of_unknown_outcome_are_counted_apart() -> None:
    """Puts without PUT_OK or without an answer are unknown, refused ones are not."""
    story = Story()
    story.put(S.FLUSH_SLAVE_TIMEOUT, took_s=1.0)
    story.put(None)
    story.put(None, logs="")
    story.put(S.SERVICE_NOT_AVAILABLE)
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.gone) == (0, 0)
    assert (loss.unknown, loss.unknown_there) == (3, 2)


def test_a_missing_log_has_lost_everything() -> None:
    """The log of the master was not found; the slave's log still has the message."""
    story = Story()
    story.put(S.PUT_OK)
    del story.logs["a"]
    checker = story.checker()
    loss = checker.verdict().loss
    assert (loss.gone, loss.elsewhere) == (1, 1)


def test_expired_messages_are_not_lost() -> None:
    """Messages in deleted files are counted apart, whatever their answer was."""
    story = Story(slave=False)
    story.put(S.PUT_OK, logs="")
    story.put(S.SLAVE_NOT_AVAILABLE, logs="")
    story.put(S.PUT_OK)
    story.history.operations[1].physic_offset = SIZE
    story.event(EventKind.DISK, "a", fault="expire", min_offset=2 * SIZE)
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.gone, loss.expired, loss.unknown) == (2, 0, 2, 0)


def test_wiped_messages_are_counted_apart() -> None:
    """Messages that were put after the wipe and are missing count as lost."""
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


def test_a_wiped_master_that_joins_another_has_no_successor() -> None:
    """The other master was never meant to have the messages of the wiped log."""
    story = Story(slave=False, role="ASYNC_MASTER")
    story.start_master("b", role="ASYNC_MASTER", log_end=0)
    story.put(S.PUT_OK, logs="")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.DISK, "a", fault="wipe")
    story.start_slave("a", master="b", log_end=None)
    story.end()
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.wiped, loss.gone) == (1, 1, 0)


def test_a_wiped_master_loses_what_its_successor_lacks() -> None:
    """Its slave was promoted, so the wipe excuses nothing."""
    story = Story(role="ASYNC_MASTER")
    story.put(S.PUT_OK, logs="")
    story.event(EventKind.KILL, "a")
    story.event(EventKind.DISK, "a", fault="wipe")
    story.start_master("b", role="ASYNC_MASTER", log_end=0)
    story.end()
    loss = story.checker().verdict().loss
    assert (loss.acknowledged, loss.wiped, loss.gone) == (1, 0, 1)

"""Planted bugs: each fails the scenario that is meant to find it, in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hastore.ha.group_transfer_service import GroupTransferService
from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one
from tests.support.worlds import planted


def sleeps_on_an_ack(patch: pytest.MonkeyPatch) -> None:
    """Process the first ack that a put waits for 3.5 s late, with the acks that came meanwhile."""
    notify = GroupTransferService.notify_transfer_some
    first_s: list[float] = []

    def notify_late(self: GroupTransferService, slave: tuple[str, int]) -> None:
        if len(self):
            first_s.append(trio.current_time())
        if first_s and trio.current_time() > first_s[0] + 3.5:
            notify(self, slave)

    patch.setattr(GroupTransferService, "notify_transfer_some", notify_late)


def first_byte_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Answer a put as soon as a slave has the beginning of its record."""
    patch.setattr(
        GroupTransferService,
        "notify_transfer_some",
        lambda self, _: self._queue.release(
            self.ack_table.push2_slave_max_offset + 4 * 1024 * 1024
        ),
    )


@pytest.mark.parametrize(
    ("plant", "story", "message"),
    [
        (planted.needs_more_than_the_record, "sync-put", "the put is PUT_OK"),
        (planted.departed_slave_counts, "departed-ack", "too far behind to count"),
        (planted.forgets_later_deadlines, "flush-slave-timeout", "each waits its full time"),
        (planted.keeps_silent_slaves, "half-open-link", "its silence ends the connection"),
        (planted.slave_acks_before_fsync, "slave-disk-slow", "not on its disk"),
        (planted.retries_fsync, "slave-sync-fails", "is not acknowledged"),
        (planted.accepts_slave_ahead, "slave-ahead", "its master's end and its own"),
        (planted.reports_before_append, "sync-put", "the slave already has it"),
        (planted.trusts_the_cache_at_a_start, "slave-sync-fails", "damaged: b: hole"),
        pytest.param(
            *(sleeps_on_an_ack, "noisy-neighbour", "is near its timeout"),
            marks=pytest.mark.soak,  # three virtual seconds of a flood take ten real ones
        ),
        (first_byte_is_enough, "large-messages", "waits for the message's last byte"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_fails_its_story(
    plant, story: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the expectation that the bug breaks."""
    (scenario,) = find(story)
    plant(monkeypatch)
    result = run_one(scenario, world=WorldKind.SIM, seed=1, directory=tmp_path / "w")
    assert not result.passed
    assert message in result.why

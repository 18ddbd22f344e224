"""The stories fail where they should: bugs planted into the product, in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.registry import find
from scenarios.runner import WorldKind, run_one
from tests.sim import planted


@pytest.mark.parametrize(
    ("plant", "story", "told"),
    [
        (planted.wakes_at_more, "sync-put", "the put is PUT_OK"),
        (planted.departed_slave_counts, "departed-ack", "too far behind to count"),
        (planted.forgets_later_deadlines, "flush-slave-timeout", "each waits its full time"),
        (planted.keeps_silent_slaves, "half-open-link", "its silence ends the connection"),
        (planted.slave_acks_before_fsync, "slave-disk-slow", "not on its disk"),
        (planted.retries_fsync, "slave-sync-fails", "is not acknowledged"),
        (planted.accepts_slave_ahead, "slave-ahead", "and both offsets"),
        (planted.resumes_at_wrong_offset, "slave-catches-up", "not within"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_fails_its_story(
    plant, story: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome that the bug takes away is the one that is missed, by name."""
    (scenario,) = find(story)
    plant(monkeypatch)
    result = run_one(scenario, world=WorldKind.SIM, seed=1, directory=tmp_path / "w")
    assert not result.passed
    assert told in result.why

"""Replica groups of a world, in the simulator: what a story may ask for, and what is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore.status import BrokerRole
from hastore.testing.group import NotInSetError
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.story.world import CutStep, ScenarioFailed
from hastore_scenarios.worlds.cut_watch import step_of
from hastore_scenarios.worlds.sim.world import SimWorld
from tests.scenarios.passing import RunStory


def test_what_groups_do_not_do_is_an_error(run_story: RunStory) -> None:
    """Each is refused before anything happens."""

    async def story(world: SimWorld) -> None:
        a, b = await world.start_group(2, in_sync_replicas=2)
        classic = await world.start_master("classic")
        with pytest.raises(ConfigError, match="keep their settings"):
            await world.promote(b, role=BrokerRole.ASYNC_MASTER)
        with pytest.raises(ConfigError, match="a can follow the master of its group only"):
            await world.follow(a, master=b)
        with pytest.raises(ConfigError, match="members and force are for"):
            await world.promote(classic, force=True)
        with pytest.raises(ConfigError, match="classic is in no replica group"):
            await world.demote(classic)
        with pytest.raises(ConfigError, match="there is a group 'group' already"):
            await world.start_group(3)
        with pytest.raises(ConfigError, match="have one coordinator, or none"):
            await world.start_group(3, coordinator=1, name="other")
        with pytest.raises(ConfigError, match="role='x'"):
            await world.start_group(1, role="x")
        assert (await world.put(a)).label == "PUT_OK"

    result = run_story(story)
    assert result.passed, result.why


def test_a_node_outside_the_set_may_be_forced(run_story: RunStory) -> None:
    """The checker finds what is lost with that."""

    async def story(world: SimWorld) -> None:
        a, b, c = await world.start_group(3)
        await world.put(a)
        await world.kill(c)
        assert (await world.put(a)).label == "PUT_OK"
        await world.kill(a)
        await world.restart(c)
        with pytest.raises(NotInSetError, match="c is not in the SyncStateSet"):
            await world.promote(c)
        await world.promote(c, force=True)
        await world.restart(a)
        await world.wait_healthy(a)
        await world.wait_healthy(b)

    result = run_story(story)
    assert result.failure is None, result.failure
    assert result.verdict is not None
    counts = {rule: count for rule, count in result.verdict.counts.items() if count}
    # a and b have cut it.
    assert counts == {"acknowledged lost": 1, "acknowledged cut": 2, "not replicated": 1}


def test_a_master_that_nobody_told_follows_at_the_end(run_story: RunStory, tmp_path: Path) -> None:
    """A story may end with two masters; the same verdict is found in the files again."""

    async def story(world: SimWorld) -> None:
        a, b, _ = await world.start_group(3)
        await world.put(a)
        await world.pause(a)
        await world.promote(b)
        await world.resume(a)
        assert (await world.status(a)).role == (await world.status(b)).role == "SYNC_MASTER"
        assert (await world.put(a)).label == "SLAVE_NOT_AVAILABLE"
        assert (await world.put(b)).label == "PUT_OK"

    result = run_story(story)
    assert result.passed, result.why
    assert recheck(tmp_path / "w") == result.verdict


def test_a_node_that_is_refused_is_named_at_the_end(run_story: RunStory) -> None:
    """Nothing was in its first epoch when it was replaced: the logs have no epoch in common."""

    async def story(world: SimWorld) -> None:
        a, b, _ = await world.start_group(3)
        await world.pause(a)
        await world.promote(b)
        await world.resume(a)
        await world.put(a)
        await world.put(b)

    result = run_story(story)
    assert result.verdict is not None
    assert result.verdict.counts["not caught up"] == 1
    assert any("a is not in step with b" in entry.text for entry in result.timeline)


def test_a_wiped_node_copies_everything(run_story: RunStory) -> None:
    """It lacks nothing at the end, and is a member."""

    async def story(world: SimWorld) -> None:
        a, b, _ = await world.start_group(3)
        await world.put_many(a, 20)
        await world.kill(b)
        await world.disk(b).wipe()
        await world.restart(b)
        await world.wait_healthy(b)
        assert (await world.put(a)).label == "PUT_OK"

    result = run_story(story)
    assert result.passed, result.why


def test_bytes_are_read_across_files(run_story: RunStory) -> None:
    """Of running nodes; a node that has cut nothing has kept nothing."""

    async def story(world: SimWorld) -> None:
        a, b = await world.start_group(2, mapped_file_size=8 * 1024)
        await world.put_many(a, 20)
        await world.wait_healthy(b)
        end = (await world.status(a)).max_offset
        assert end > 3 * 8 * 1024
        whole = await world.log_bytes(a, 0, end + 1)
        assert len(whole) >= end
        assert await world.log_bytes(b, 0, end) == whole[:end]
        assert await world.log_bytes(b, 5_000, 20_000) == whole[5_000:20_000]
        assert await world.cut_bytes(b) == b""

    result = run_story(story)
    assert result.passed, result.why


def test_a_step_that_is_not_made_fails_the_story(run_story: RunStory) -> None:
    """The node runs on: its log has nothing to cut."""

    async def story(world: SimWorld) -> None:
        _, b = await world.start_group(2)
        await world.kill(b)
        with pytest.raises(ScenarioFailed, match="b runs on: its cut has no step log"):
            await world.die_in_cut(b, CutStep.LOG)

    result = run_story(story)
    assert result.passed, result.why


@pytest.mark.parametrize(
    ("name", "path", "step"),
    [
        ("create_file", "trimmed/00000000000000002060-1", CutStep.COPY),
        ("write_file", "trimmed/cut-00000000000000002060-1.json", CutStep.DESCRIPTION),
        ("write_file", "cut.json", CutStep.INTENT),
        ("pwrite", "checkpoint", CutStep.CHECKPOINT),
        ("remove", "commitlog/00000000000000004096", CutStep.LOG),
        ("pwrite", "consumequeue/T/0/00000000000000000000", CutStep.QUEUES),
        ("sync", "index/20260101000000000", CutStep.INDEX),
        ("write_file", "epochFileCheckpoint", CutStep.EPOCHS),
        ("remove", "cut.json", CutStep.FINISH),
        ("write_file", "identity.json", None),
    ],
)
def test_the_path_of_a_change_tells_the_step(name: str, path: str, step: CutStep | None) -> None:
    """Each step changes files of its own."""
    assert step_of(name, path) is step

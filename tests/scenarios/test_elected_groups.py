"""Groups of a world whose coordinator decides: what a story may ask for, and what is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hastore.cluster import operations
from hastore.errors import ConfigError, OperationRefusedError
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one
from hastore_scenarios.story.world import ScenarioFailed, members_of
from hastore_scenarios.worlds.process import coordinator
from hastore_scenarios.worlds.sim.world import SimWorld
from tests.scenarios.passing import RunStory


def test_a_story_does_not_decide_where_a_coordinator_does(run_story: RunStory) -> None:
    """Nor is there one where nobody asked for it; each error names what to do."""

    async def story(world: SimWorld) -> None:
        with pytest.raises(ConfigError, match="no coordinator decides here"):
            await world.wait_master()
        a, b, _ = await world.start_group(3, coordinator=1)
        for change in (world.promote(b), world.follow(b, master=a), world.demote(a)):
            with pytest.raises(ConfigError, match="a coordinator decides on the role of"):
                await change
        with pytest.raises(OperationRefusedError, match="node 1 is the master already"):
            await world.coordinator.change(operations.switchover, a.node_id)
        with pytest.raises(
            ScenarioFailed, match=r"no master of epoch 2 .*a: it is master; b: it f"
        ):
            await world.wait_master(2, within_s=2.0)
        with pytest.raises(ScenarioFailed, match=r"etcd: not within 2 s: no master; last seen: Gr"):
            await world.coordinator.wait_until("no master", lambda v: not v.leader, within_s=2.0)
        assert (await world.put(a)).label == "PUT_OK"

    result = run_story(story)
    assert result.passed, result.why


def test_all_that_a_story_has_broken_heals_at_the_end(run_story: RunStory) -> None:
    """Servers start, ways and links open, elections go on; then every node must be in step."""

    async def story(world: SimWorld) -> None:
        a, b, c = await world.start_group(3, coordinator=3)
        await world.put_many(a, 20)
        await world.coordinator.change(operations.pause)
        await world.coordinator.cut_off(b)
        await world.cut_off(b, c)
        await world.coordinator.stop(2)
        await world.kill(a)
        await world.pause(c)

    result = run_story(story)
    assert result.passed, result.why
    assert any("of epoch 2" in entry.text for entry in result.timeline)


def test_a_loss_that_a_person_accepts_is_found(run_story: RunStory, tmp_path: Path) -> None:
    """The checker judges by the epochs that the world has recorded; again from the files."""

    async def story(world: SimWorld) -> None:
        a, _, c = await world.start_group(3, coordinator=1)
        await world.put(a)
        await world.kill(c)
        await world.wait_until(a, "c is out", lambda s: c.node_id not in members_of(s))
        assert (await world.put(a)).label == "PUT_OK"
        for node in (a, world.nodes["b"]):
            await world.kill(node)
        await world.restart(c)
        await world.coordinator.wait_until("no master", lambda view: view.leader is None)
        await world.coordinator.change(operations.failover, c.node_id, at_ms=0, accept_loss=True)
        assert await world.wait_master(2) is c

    result = run_story(story)
    assert result.failure is None, result.failure
    assert result.verdict is not None
    assert result.verdict.counts["acknowledged lost"] == 1
    assert recheck(tmp_path / "w") == result.verdict


def test_puts_follow_the_master_and_none_is_forgotten(run_story: RunStory) -> None:
    """Those that a killed or frozen master has not answered are recorded, too."""

    async def story(world: SimWorld) -> None:
        a, *_ = await world.start_group(3, coordinator=1)
        async with world.group_load() as load:

            def acknowledged(name: str) -> bool:
                found = [put for put in load.operations if put.node == name]
                return sum(put.label == "PUT_OK" for put in found) > 20

            await world.wait_until(a, "puts", lambda _: acknowledged("a"))
            await world.pause(a)
            successor = await world.wait_master(2)
            await world.wait_until(successor, "puts", lambda _: acknowledged(successor.name))
            await world.resume(a)
        assert all(put.completed_s is not None for put in load.operations)
        faults = [each.text for each in world.history.events if each.kind is EventKind.COORDINATOR]
        assert faults == []

    result = run_story(story)
    assert result.passed, result.why


def test_a_story_is_skipped_where_there_is_no_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, and without a failure."""
    (scenario,) = find("master-killed")
    monkeypatch.setattr(coordinator, "etcd_binary", lambda: None)
    result = run_one(scenario, world=WorldKind.PROCESS, directory=tmp_path / "w")
    assert result.skipped is not None
    assert "no etcd here" in result.skipped

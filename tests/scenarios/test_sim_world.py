"""The world in the simulator: faults of nodes, links and disks do what a story asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from hastore.errors import HastoreError
from hastore.status import FlushDiskType, PutMessageStatus
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.runner import WorldKind, run_one
from hastore_scenarios.story.world import LinkMode, ScenarioSkipped
from hastore_scenarios.worlds.sim.world import SimWorld
from tests.scenarios.passing import scenario_of

RunStory = Callable[[Callable[[SimWorld], Awaitable[None]]], ScenarioResult]


@pytest.fixture
def run_story(tmp_path: Path) -> RunStory:
    """Return a function that runs a story with seed 1 and returns the result."""

    def run(story: Callable[[SimWorld], Awaitable[None]]) -> ScenarioResult:
        place = tmp_path / "w"
        return run_one(scenario_of(story), world=WorldKind.SIM, seed=1, directory=place, keep=True)

    return run


def test_virtual_time_passes_at_once(run_story: RunStory, tmp_path: Path) -> None:
    """The story sleeps for 100 virtual seconds, and tools can read its directory afterwards."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put(master)
        await trio.sleep(100.0)
        await world.put(master)

    result = run_story(story)
    assert result.passed, result.why
    assert result.duration_s > 100
    assert (result.world, result.seed) == ("sim", 1)
    assert recheck(tmp_path / "w") == result.verdict
    assert result.verdict is not None
    assert result.verdict.records == 2


def test_a_frozen_node_does_not_answer(run_story: RunStory) -> None:
    """Connections are still accepted, as by a kernel; resume() lets it handle what has arrived."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put(master)
        await world.pause(master)
        with pytest.raises(HastoreError, match="no answer"):
            await world.status(master)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.put, master)
            await trio.sleep(3.0)
            assert world.history.operations[-1].status is None
            await world.resume(master)
        assert world.history.operations[-1].status is PutMessageStatus.SLAVE_NOT_AVAILABLE

    result = run_story(story)
    assert result.passed, result.why


def test_a_frozen_node_can_be_killed(run_story: RunStory) -> None:
    """It starts again with the log that it had."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put(master)
        end = (await world.status(master)).max_offset
        await world.pause(master)
        await world.kill(master)
        await world.restart(master)
        assert (await world.status(master)).max_offset == end

    result = run_story(story)
    assert result.passed, result.why


@pytest.mark.parametrize("mode", [mode for mode in LinkMode if mode is not LinkMode.OPEN])
def test_a_cut_link_acknowledges_nothing_until_healed(run_story: RunStory, mode: LinkMode) -> None:
    """In every mode of cut no put is PUT_OK; after heal() the next one is."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a", slave_timeout_ms=200)
        slave = await world.start_slave("b", master=master)
        await world.wait_healthy(slave)
        world.link(slave).cut(mode)
        put = await world.put(master)
        assert put.status in {
            PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
            PutMessageStatus.SLAVE_NOT_AVAILABLE,
        }
        world.link(slave).heal()
        await world.wait_healthy(slave)
        assert (await world.put(master)).status is PutMessageStatus.PUT_OK

    result = run_story(story)
    assert result.passed, result.why


def test_a_slow_link_limits_the_rate(run_story: RunStory) -> None:
    """A megabyte at 500,000 bytes a second takes two seconds."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        slave = await world.start_slave("b", master=master)
        await world.wait_healthy(slave)
        world.link(slave).slow(500_000)
        began_s = world.now_s
        await world.put_many(master, 10, size=100_000, wait=False)
        await world.wait_healthy(slave)
        assert 1.9 < world.now_s - began_s < 2.5
        world.link(slave).reset()
        world.link(slave).heal()
        await world.wait_healthy(slave)

    result = run_story(story)
    assert result.passed, result.why


def test_a_slave_is_linked_by_its_current_connection(run_story: RunStory) -> None:
    """Its master's status may still show a connection that the slave has already lost."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        slave = await world.start_slave("b", master=master)
        await world.wait_healthy(slave)
        shown = await world.status(master)
        assert await world._is_linked(slave, shown)
        world.link(slave).reset()
        assert not await world._is_linked(slave, shown)
        world.link(slave).heal()
        await world.wait_healthy(slave)
        assert not await world._is_linked(slave, shown)
        assert await world._is_linked(slave, await world.status(master))
        await world.pause(slave)
        assert not await world._is_linked(slave, await world.status(master))
        await world.resume(slave)

    result = run_story(story)
    assert result.passed, result.why


def test_a_node_that_exits_by_itself_is_reported(run_story: RunStory) -> None:
    """A failed sync ends a SYNC_FLUSH master with exit code 1, and its put is not PUT_OK."""

    async def story(world: SimWorld) -> None:
        sync = FlushDiskType.SYNC_FLUSH
        master = await world.start_master("a", flush=sync, faulty_disk=True)
        world.disk(master).fail_sync()
        put = await world.put(master)
        assert put.status is not PutMessageStatus.PUT_OK
        assert await world.wait_exit(master) == 1
        world.disk(master).heal()
        await world.restart(master)

    result = run_story(story)
    assert result.passed, result.why
    assert "exit" in [entry.kind for entry in result.timeline]


def test_wait_exit_fails_if_the_node_keeps_running(run_story: RunStory) -> None:
    """The failure names the node and the time limit."""

    async def story(world: SimWorld) -> None:
        await world.wait_exit(await world.start_master("a"), within_s=1.0)

    result = run_story(story)
    assert result.failure is not None
    assert result.failure.endswith(" in story: a has not ended by itself within 1 s")


def test_a_node_that_cannot_start_reports_the_reason(run_story: RunStory) -> None:
    """The failure quotes the node's output: its disk is full."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a", faulty_disk=True)
        await world.stop(master)
        await world.disk(master).wipe()
        world.disk(master).full()
        await world.restart(master)

    result = run_story(story)
    assert result.failure is not None
    assert " in story: a ended with 1 before it listened\nno space" in result.failure


def test_a_skipped_story_is_neither_passed_nor_failed(run_story: RunStory, tmp_path: Path) -> None:
    """The result has the reason, and the world's directory is removed."""

    async def story(world: SimWorld) -> None:
        await world.start_master("a")
        raise ScenarioSkipped("no elephants here")

    result = run_story(story)
    assert result.skipped == "no elephants here"
    assert result.failure is None
    assert result.verdict is None
    assert not (tmp_path / "w").exists()


def test_a_skip_hides_no_violation(run_story: RunStory) -> None:
    """A violation before the skip fails the story."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put_many(master, 3)
        await world.kill(master)
        await world.disk(master).tear(100)
        raise ScenarioSkipped("no elephants here")

    result = run_story(story)
    assert result.skipped is None
    assert "stored not there" in result.why


def test_an_unexpected_error_in_a_node_ends_the_run(
    run_story: RunStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception is raised and not turned into a result."""

    def broken(self: object, _status: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hastore.broker.puts.put_message.PutMessage.submit", broken)

    async def story(world: SimWorld) -> None:
        await world.put(await world.start_master("a"))

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        run_story(story)

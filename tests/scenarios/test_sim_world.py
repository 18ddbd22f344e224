"""The world in the simulator: what is done to its nodes, links and disks is what was asked for."""

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
from tests.scenarios.test_runner import scenario_of

Tell = Callable[[Callable[[SimWorld], Awaitable[None]]], ScenarioResult]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Tells a story by seed 1; what it raises comes out, a failed expectation fails the test."""

    def run(story: Callable[[SimWorld], Awaitable[None]]) -> ScenarioResult:
        place = tmp_path / "w"
        return run_one(scenario_of(story), world=WorldKind.SIM, seed=1, directory=place, keep=True)

    return run


def test_waiting_takes_no_time(tell: Tell, tmp_path: Path) -> None:
    """An hour of virtual time passes at once, and the directory is one that tools can read."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put(master)
        await trio.sleep(100.0)
        await world.put(master)

    result = tell(story)
    assert result.passed, result.why
    assert result.duration_s > 100
    assert (result.world, result.seed) == ("sim", 1)
    assert recheck(tmp_path / "w") == result.verdict
    assert result.verdict is not None
    assert result.verdict.records == 2


def test_a_frozen_node_stands_still(tell: Tell) -> None:
    """It takes connections, as its kernel does, and says nothing; then all that came is done."""

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

    result = tell(story)
    assert result.passed, result.why


def test_a_frozen_node_can_be_killed(tell: Tell) -> None:
    """SIGKILL ends it, frozen or not; it starts again on what it had."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put(master)
        end = (await world.status(master)).max_offset
        await world.pause(master)
        await world.kill(master)
        await world.restart(master)
        assert (await world.status(master)).max_offset == end

    result = tell(story)
    assert result.passed, result.why


@pytest.mark.parametrize("mode", [mode for mode in LinkMode if mode is not LinkMode.OPEN])
def test_no_closed_link_gives_an_acknowledgement(tell: Tell, mode: LinkMode) -> None:
    """Whatever is cut, no put is PUT_OK before the link is healed, and then it is."""

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

    result = tell(story)
    assert result.passed, result.why


def test_a_slow_link_has_its_rate(tell: Tell) -> None:
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

    result = tell(story)
    assert result.passed, result.why


def test_a_slave_is_in_step_by_the_link_that_it_has_itself(tell: Tell) -> None:
    """What its master shows may be a link that is gone: the master was frozen, or has not read."""

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

    result = tell(story)
    assert result.passed, result.why


def test_a_node_that_ends_by_itself_is_told(tell: Tell) -> None:
    """A failed sync ends a SYNC_FLUSH master with exit code 1; nothing was promised meanwhile."""

    async def story(world: SimWorld) -> None:
        sync = FlushDiskType.SYNC_FLUSH
        master = await world.start_master("a", flush=sync, faulty_disk=True)
        world.disk(master).fail_sync()
        put = await world.put(master)
        assert put.status is not PutMessageStatus.PUT_OK
        assert await world.wait_exit(master) == 1
        world.disk(master).heal()
        await world.restart(master)

    result = tell(story)
    assert result.passed, result.why
    assert "exit" in [entry.kind for entry in result.timeline]


def test_a_node_that_does_not_end_is_told(tell: Tell) -> None:
    """Waiting for an end that does not come fails the story."""

    async def story(world: SimWorld) -> None:
        await world.wait_exit(await world.start_master("a"), within_s=1.0)

    result = tell(story)
    assert result.failure == "a has not ended by itself within 1 s"


def test_a_node_that_cannot_start_says_why(tell: Tell) -> None:
    """A full disk at the start is a NodeFailed with the node's own words."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a", faulty_disk=True)
        await world.stop(master)
        await world.disk(master).wipe()
        world.disk(master).full()
        await world.restart(master)

    result = tell(story)
    assert result.failure is not None
    assert result.failure.startswith("a ended with 1 before it listened\nno space")


def test_a_skipped_story_is_neither_passed_nor_failed(tell: Tell, tmp_path: Path) -> None:
    """The result says what is missing, and nothing is left of the world."""

    async def story(world: SimWorld) -> None:
        await world.start_master("a")
        raise ScenarioSkipped("no elephants here")

    result = tell(story)
    assert result.skipped == "no elephants here"
    assert result.failure is None
    assert result.verdict is None
    assert not (tmp_path / "w").exists()


def test_a_skip_hides_no_violation(tell: Tell) -> None:
    """What was wrong before the story was given up is told."""

    async def story(world: SimWorld) -> None:
        master = await world.start_master("a")
        await world.put_many(master, 3)
        await world.kill(master)
        await world.disk(master).tear(100)
        raise ScenarioSkipped("no elephants here")

    result = tell(story)
    assert result.skipped is None
    assert "stored not there" in result.why


def test_a_defect_of_a_node_comes_out(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no node may have ends the run as itself."""

    def broken(self: object, _status: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hastore.broker.puts.put_message.PutMessage.submit", broken)

    async def story(world: SimWorld) -> None:
        await world.put(await world.start_master("a"))

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        tell(story)

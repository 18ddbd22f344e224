"""The runner: how a failed story ends, and what is kept of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore.status import PutMessageStatus
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one, run_scenario
from hastore_scenarios.story.world import ScenarioFailed, ScenarioSkipped, World
from tests.scenarios.passing import scenario_of
from tests.support.commands.running import is_alive


async def test_a_passed_story_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its directory is removed, its processes have ended, and its JSON form is complete."""
    pids = []

    async def story(world: World) -> None:
        node = await world.start_master("a")
        pids.append((await world.status(node)).process_id)
        await world.put(node)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.passed, result.why
    assert result.directory is None
    assert not (tmp_path / "w").exists()
    assert not is_alive(pids[0])
    data = json.loads(json.dumps(result.to_dict()))
    assert data["schema"] == "hastore.scenario/1"
    assert data["put_counts"] == {"SLAVE_NOT_AVAILABLE": 1}
    assert [entry["kind"] for entry in data["timeline"]] == [
        "start-master",
        "puts",
        "end",
        "stop",
    ]
    assert data["timeline"][-1]["text"] == "a: stopped (SIGTERM)"  # as in the simulator


async def test_a_failed_expectation_is_reported_and_the_logs_are_checked(tmp_path: Path) -> None:
    """The failure is one line, there is a verdict, and the directory is kept."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        put = await world.put(node)
        world.expect(put.status is PutMessageStatus.PUT_OK, "the moon is made of cheese", put=1)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert not result.passed
    line = story.__code__.co_firstlineno + 3
    shown = f"{__file__}:{line} in story: expected: the moon is made of cheese (put=1)"
    assert result.failure == shown
    assert result.verdict is not None
    assert result.verdict.ok
    assert result.directory == str(tmp_path / "w")
    assert "master_serving" in result.outputs["a"]
    assert recheck(tmp_path / "w") == result.verdict


@pytest.mark.parametrize("error", [ScenarioFailed("no"), ScenarioSkipped("no"), KeyError("no")])
def test_errors_in_a_load_block_are_handled_like_others(error: Exception, tmp_path: Path) -> None:
    """The block's nursery raises groups, but a failure fails, a skip skips and a bug is raised."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        async with world.load(node):
            raise error

    def run_story() -> ScenarioResult:
        return run_one(scenario_of(story), world=WorldKind.SIM, directory=tmp_path / "w")

    if isinstance(error, KeyError):
        with pytest.raises(ExceptionGroup):
            run_story()
        return
    result = run_story()
    is_skip = isinstance(error, ScenarioSkipped)
    assert result.skipped == ("no" if is_skip else None)
    line = story.__code__.co_firstlineno + 3
    assert result.failure == (None if is_skip else f"{__file__}:{line} in story: no")


async def test_a_world_needs_an_empty_directory(tmp_path: Path) -> None:
    """Messages of an earlier run would look like messages that were never sent."""

    async def story(world: World) -> None:
        raise AssertionError("never begun")

    (tmp_path / "history.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="not empty"):
        await run_scenario(scenario_of(story), tmp_path)


async def test_damage_in_a_log_is_found_by_reading_it(tmp_path: Path) -> None:
    """The checker reads the bytes on disk and misses a message that was overwritten there."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        await world.put_many(node, 10)
        await world.stop(node)
        log = tmp_path / "w" / "a" / "commitlog" / "00000000000000000000"
        with log.open("r+b") as file:
            file.seek(200)
            file.write(b"\xff")

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is None
    assert result.verdict is not None
    broken = {rule for rule, count in result.verdict.counts.items() if count}
    assert {"damaged", "stored not there"} <= broken


async def test_a_node_that_cannot_start_shows_its_output(tmp_path: Path) -> None:
    """The failure names the node and quotes the end of its output."""

    async def story(world: World) -> None:
        (tmp_path / "w" / "a").write_text("a file where a directory should be")
        await world.start_master("a")

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is not None
    assert " in story: a ended with 1 before it listened\n" in result.failure
    assert "Not a directory" in result.failure.splitlines()[1]


async def test_a_node_that_exits_by_itself_fails_the_story(tmp_path: Path) -> None:
    """Only a node that the story has killed or stopped may be missing."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        status = await world.status(node)
        os.kill(status.process_id, 9)
        await world.wait_until(node, "never", lambda _: False, within_s=5.0)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is not None
    assert "a does not run (exit -9)" in result.failure


async def test_wait_until_reports_the_last_status_at_its_deadline(tmp_path: Path) -> None:
    """The failure names the condition and the node's state."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        await world.wait_until(node, "a miracle", lambda _: False, within_s=3.0)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is not None
    assert "a: not within 3 s: a miracle; last seen: SYNC_MASTER serving at 0" in result.failure


async def test_the_end_of_a_story_ends_its_faults(tmp_path: Path) -> None:
    """A frozen slave resumes and a cut link is healed before the final catch-up is checked."""

    async def story(world: World) -> None:
        master = await world.start_master("a", slave_timeout_ms=100)
        for name in "bc":
            slave = await world.start_slave(name, master=master)
            await world.wait_healthy(slave)
        world.link(slave).cut()
        await world.pause(slave)
        await world.put_many(master, 10, wait=False)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.passed, result.why
    kinds = [entry.kind for entry in result.timeline]
    assert kinds.count("caught-up") == 2
    assert kinds.index("resume") < kinds.index("caught-up")


async def test_no_process_outlives_a_crash_of_the_story(tmp_path: Path) -> None:
    """The exception is raised unchanged, after all processes have ended."""
    pids = []

    async def story(world: World) -> None:
        node = await world.start_master("a")
        pids.append((await world.status(node)).process_id)
        await world.pause(node)
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await run_scenario(scenario_of(story), tmp_path / "w")
    assert not is_alive(pids[0])


def test_a_files_scenario_is_run_and_each_entry_reported(tmp_path: Path) -> None:
    """The synchronous entry point returns one result and passes on each timeline entry at once."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from hastore_scenarios import scenario\n"
        "@scenario(title='Mine', proves='that a file will do')\n"
        "async def mine(world):\n"
        "    world.say('hello')\n"
        "    await world.start_master('a')\n"
    )
    shown = []
    (found,) = find(str(path))
    result = run_one(found, directory=tmp_path / "w", keep=True, on_entry=shown.append)
    assert result.passed, result.why
    assert [entry.kind for entry in shown] == ["say", "start-master", "end", "stop"]
    assert result.directory is not None
    assert (Path(result.directory) / "history.jsonl").is_file()

"""The runner: what becomes of a story that goes wrong, and what is kept of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore.status import PutMessageStatus
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.runner import WorldKind, run, run_one, run_scenario
from hastore_scenarios.story.scenario import Scenario
from hastore_scenarios.story.world import ScenarioFailed, ScenarioSkipped, World


def scenario_of(function) -> Scenario:
    """A scenario made of a function of this file."""
    return Scenario(
        name="test",
        number=0,
        title="Test",
        proves="nothing",
        doc="",
        path=__file__,
        function=function,
    )


def is_alive(pid: int) -> bool:
    """Whether a process has not ended (a zombie has)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


async def test_a_story_that_passes_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its directory is removed, its processes are gone, its JSON form says it all."""
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


async def test_a_failed_expectation_is_told_and_the_checker_still_looks(tmp_path: Path) -> None:
    """The failure is one line, the verdict is there, and the directory is kept."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        put = await world.put(node)
        world.expect(put.status is PutMessageStatus.PUT_OK, "the moon is made of cheese", put=1)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert not result.passed
    line = story.__code__.co_firstlineno + 3
    told = f"{__file__}:{line} in story: expected: the moon is made of cheese (put=1)"
    assert result.failure == told
    assert result.verdict is not None
    assert result.verdict.ok
    assert result.directory == str(tmp_path / "w")
    assert "master_serving" in result.outputs["a"]
    assert recheck(tmp_path / "w") == result.verdict


@pytest.mark.parametrize("error", [ScenarioFailed("no"), ScenarioSkipped("no"), KeyError("no")])
def test_what_ends_a_load_block_is_told_like_any_other(error: Exception, tmp_path: Path) -> None:
    """The block has a nursery, which raises groups: a failure fails, a skip skips, a bug passes."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        async with world.load(node):
            raise error

    def tell() -> ScenarioResult:
        return run_one(scenario_of(story), world=WorldKind.SIM, directory=tmp_path / "w")

    if isinstance(error, KeyError):
        with pytest.raises(ExceptionGroup):
            tell()
        return
    result = tell()
    is_skip = isinstance(error, ScenarioSkipped)
    assert result.skipped == ("no" if is_skip else None)
    line = story.__code__.co_firstlineno + 3
    assert result.failure == (None if is_skip else f"{__file__}:{line} in story: no")


async def test_a_world_begins_in_an_empty_directory(tmp_path: Path) -> None:
    """What an earlier run left would be taken for messages that nobody sent."""

    async def story(world: World) -> None:
        raise AssertionError("never begun")

    (tmp_path / "history.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="not empty"):
        await run_scenario(scenario_of(story), tmp_path)


async def test_a_lie_in_a_log_is_found_by_reading_it(tmp_path: Path) -> None:
    """The checker judges the bytes on disk: a message taken out of them afterwards is missed."""

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


async def test_a_node_that_cannot_start_shows_what_it_said(tmp_path: Path) -> None:
    """The failure names the node and quotes the end of its output."""

    async def story(world: World) -> None:
        (tmp_path / "w" / "a").write_text("a file where a directory should be")
        await world.start_master("a")

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is not None
    assert " in story: a ended with 1 before it listened\n" in result.failure
    assert "Not a directory" in result.failure.splitlines()[1]


async def test_a_node_that_dies_by_itself_fails_the_story(tmp_path: Path) -> None:
    """A node nobody killed must not be missing."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        status = await world.status(node)
        os.kill(status.process_id, 9)
        await world.wait_until(node, "never", lambda _: False, within_s=5.0)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is not None
    assert "a does not run (exit -9)" in result.failure


async def test_a_condition_that_never_holds_says_what_was_last_seen(tmp_path: Path) -> None:
    """wait_until gives up at its deadline, with the node's state in the message."""

    async def story(world: World) -> None:
        node = await world.start_master("a")
        await world.wait_until(node, "a miracle", lambda _: False, within_s=3.0)

    result = await run_scenario(scenario_of(story), tmp_path / "w")
    assert result.failure is not None
    assert "a: not within 3 s: a miracle; last seen: SYNC_MASTER serving at 0" in result.failure


async def test_the_end_of_a_story_ends_its_faults(tmp_path: Path) -> None:
    """A frozen slave and a cut link are undone before the final catch-up is judged."""

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
    """A programmer's error comes out as itself, after all processes are gone."""
    pids = []

    async def story(world: World) -> None:
        node = await world.start_master("a")
        pids.append((await world.status(node)).process_id)
        await world.pause(node)
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await run_scenario(scenario_of(story), tmp_path / "w")
    assert not is_alive(pids[0])


def test_run_finds_runs_and_tells_as_it_goes(tmp_path: Path) -> None:
    """The synchronous door: a file in, one result out, each line of the timeline on its way."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from hastore_scenarios import scenario\n"
        "@scenario(title='Mine', proves='that a file will do')\n"
        "async def mine(world):\n"
        "    world.say('hello')\n"
        "    await world.start_master('a')\n"
    )
    told = []
    result = run(str(path), directory=str(tmp_path / "w"), keep=True, on_entry=told.append)
    assert result.passed, result.why
    assert [entry.kind for entry in told] == ["say", "start-master", "end", "stop"]
    assert result.directory is not None
    assert (Path(result.directory) / "history.jsonl").is_file()

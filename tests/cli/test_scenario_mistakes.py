"""`hastore scenario run FILE`: mistakes are named by their line, and no report is lost."""

import errno
import json
import re
import tempfile
from pathlib import Path

import pytest

from hastore_cli.main import main
from tests.support.commands.running import is_one_line_with_a_next_step

HEAD = """
from hastore_scenarios.story.scenario import scenario

@scenario(title="Wrong", proves="nothing")
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A working directory that contains the directory for temporary worlds."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_story(path: Path, *lines: str) -> str:
    """Write a file with one story, whose body starts at line 6; return its path."""
    text = HEAD + "async def story(world):\n" + "".join(f"    {line}\n" for line in lines)
    path.write_text(text)
    return str(path)


def run_sim(*arguments: str) -> int:
    """Run stories in the simulator within this process; return the exit code."""
    return main(["scenario", "run", *arguments, "--world", "sim"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'await world.start_master("z", slave_timeot_ms=3)',
            "slave_timeot_ms is not a setting of a node; did you mean slave_timeout_ms?",
        ),
        ('await world.start_master("z", slave_timeout_ms="x")', "='x': use a whole number"),
        ('await world.start_master("z", append_prop_crc=1)', "=1: use True or False"),
        ('await world.start_master("z", role="SYNC_MASTER")', "use one of BrokerRole."),
        ('world.put(await world.start_master("z"))', "put() was never awaited: write await"),
        ('world.disk(await world.start_master("z")).tear(5)', "tear() was never awaited"),
        ('world.expect(False, "it is so")', "expected: it is so"),
        ("raise SystemExit(3)", "SystemExit: 3, at: raise SystemExit(3)"),
        (
            (
                'b = await world.start_slave("b", master=await world.start_master("a"));'
                ' await world.wait_healthy(b); await world.wait_until(b, "x", lambda _: False)'
            ),
            ", link streaming",
        ),
        ('a = await world.start_master("z"); await world.kill(a); await world.kill(a)', "exit -9"),
    ],
)
def test_mistake_in_a_story_is_named_by_its_line(place, capsys, line, message):
    """Exit 1; stdout names file, line and function, and the report is written."""
    file = write_story(place / "mistake.py", line)
    assert run_sim(file, "--out", "out") == 1
    output = capsys.readouterr()
    assert output.err == ""
    named = next(each for each in output.out.splitlines() if message in each)
    assert named.startswith(f"    {file}:6 in story: ")
    assert "None" not in named
    assert message in (place / "out" / "result.json").read_text()
    assert (place / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("def story(world):\n    pass", "story is not a story: write async def story(world)"),
        ("async def story():\n    pass", "story must take the world as its only argument:"),
        (
            "async def story(world, more):\n    pass",
            "story must take the world as its only argument: missing",
        ),
    ],
)
def test_invalid_story_function_is_refused_before_any_run(place, capsys, definition, message):
    """Exit 2; the error names the line of its decorator."""
    file = place / "mistake.py"
    file.write_text(f"{HEAD}{definition}\n")
    assert run_sim(str(file)) == 2
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert f"{file}:4 in <module>: TypeError: {message}" in err


def test_system_exit_in_a_story_file_is_named_by_its_line(place, capsys):
    """At module level it makes the command exit with 2."""
    file = place / "mistake.py"
    file.write_text("raise SystemExit(3)\n")
    assert run_sim(str(file)) == 2
    assert f"{file}:1 in <module>: SystemExit: 3" in capsys.readouterr().err


@pytest.mark.parametrize("out", [("--out", "out"), ()])
def test_stories_with_one_name_keep_all_reports(place, capsys, out):
    """Each has its own folder, world and name in the summary."""
    lines = {"good": "world.say('well')", "bad": "world.expect(False, 'so')"}
    files = [write_story(place / f"{name}.py", line) for name, line in lines.items()]
    assert run_sim(*files, files[1], *out, "--directory", "worlds") == 1
    output = capsys.readouterr().out
    assert "1 of 3 scenarios passed; failed: bad-story, bad-story.2\n" in output
    folders = list((place / (out[1] if out else "hastore-runs")).iterdir())
    reports = sorted(json.loads((each / "result.json").read_text())["passed"] for each in folders)
    assert reports == [False, False, True]
    names = [re.sub(r"-[0-9]{8}-[0-9]{6}", "", each.name) for each in folders]
    assert sorted(names) == ["bad-story", "bad-story.2", "good-story"]
    assert sorted(each.name for each in (place / "worlds").iterdir()) == [
        "bad-story",
        "bad-story.2",
    ]


def test_closed_pipe_leaves_no_world_behind(place, monkeypatch):
    """As in `scenario run … | head`: exit 141, no temporary files, no empty folder."""

    def closed_pipe(text: str = "") -> None:
        if "well" in text:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("hastore_cli.lab.scenario_run.tell", closed_pipe)
    monkeypatch.setattr("hastore_cli.app.error_report.silence_stdout", lambda: None)
    assert run_sim(write_story(place / "story.py", "world.say('well')"), "--out", "out") == 141
    assert list((place / "tmp").iterdir()) == []
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sync-putt",), "there is no scenario 'sync-putt'; did you mean sync-put?"),
        (("--all", "sync-put"), "--all runs every scenario of the catalog: leave the names out"),
        (("1", "--directory", "file"), "'file' is a file"),
        (("1", "--directory", "file/worlds"), "cannot make file/worlds for the worlds"),
    ],
)
def test_command_line_mistake_has_a_next_step(place, capsys, arguments, message):
    """No scenario runs, and no folder is created."""
    (place / "file").write_text("")
    assert run_sim(*arguments) in {1, 2}
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert message in err
    assert not (place / "hastore-runs").exists()

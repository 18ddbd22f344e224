"""`hastore scenario run FILE`: a user's mistake is named by its line, and no report is lost."""

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
    """A working directory, with a place of its own for temporary worlds."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_story(path: Path, *lines: str) -> str:
    """A file of one story; its first line is the file's sixth."""
    text = HEAD + "async def story(world):\n" + "".join(f"    {line}\n" for line in lines)
    path.write_text(text)
    return str(path)


def run_sim(*arguments: str) -> int:
    """Run stories in the simulator, in this process."""
    return main(["scenario", "run", *arguments, "--world", "sim"])


@pytest.mark.parametrize(
    ("line", "said"),
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
def test_what_a_story_does_wrong_is_named_by_its_line(place, capsys, line, said):
    """Exit 1 with file, line and function, in the verdict and in the report."""
    file = write_story(place / "mistake.py", line)
    assert run_sim(file, "--out", "out") == 1
    told = capsys.readouterr()
    assert told.err == ""
    named = next(each for each in told.out.splitlines() if said in each)
    assert named.startswith(f"    {file}:6 in story: ")
    assert "None" not in named
    assert said in (place / "out" / "result.json").read_text()
    assert (place / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("def story(world):\n    pass", "story is not a story: write async def story(world)"),
        ("async def story():\n    pass", "story must take the world as its only argument:"),
        (
            "async def story(world, more):\n    pass",
            "story must take the world as its only argument: missing",
        ),
    ],
)
def test_what_is_no_story_is_refused_before_anything_runs(place, capsys, definition, said):
    """A function that cannot be told is exit 2, named by the line of its decorator."""
    file = place / "mistake.py"
    file.write_text(f"{HEAD}{definition}\n")
    assert run_sim(str(file)) == 2
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert f"{file}:4 in <module>: TypeError: {said}" in err


def test_a_file_that_ends_python_is_a_mistake_in_it(place, capsys):
    """`raise SystemExit` at a file's top is exit 2, named by its line."""
    file = place / "mistake.py"
    file.write_text("raise SystemExit(3)\n")
    assert run_sim(str(file)) == 2
    assert f"{file}:1 in <module>: SystemExit: 3" in capsys.readouterr().err


@pytest.mark.parametrize("out", [("--out", "out"), ()])
def test_stories_of_one_name_lose_no_report(place, capsys, out):
    """Each has its folder, its world and its name in the summary, whatever they are called."""
    lines = {"good": "world.say('well')", "bad": "world.expect(False, 'so')"}
    files = [write_story(place / f"{name}.py", line) for name, line in lines.items()]
    assert run_sim(*files, files[1], *out, "--directory", "worlds") == 1
    told = capsys.readouterr().out
    assert "1 of 3 scenarios passed; failed: bad-story, bad-story.2\n" in told
    folders = list((place / (out[1] if out else "hastore-runs")).iterdir())
    reports = sorted(json.loads((each / "result.json").read_text())["passed"] for each in folders)
    assert reports == [False, False, True]
    names = [re.sub(r"-[0-9]{8}-[0-9]{6}", "", each.name) for each in folders]
    assert sorted(names) == ["bad-story", "bad-story.2", "good-story"]
    assert sorted(each.name for each in (place / "worlds").iterdir()) == [
        "bad-story",
        "bad-story.2",
    ]


def test_a_reader_that_goes_leaves_no_world_behind(place, monkeypatch):
    """`scenario run … | head`: exit 141, nothing temporary is left, no empty folder."""

    def nobody_reads(text: str = "") -> None:
        if "well" in text:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("hastore_cli.lab.scenario_run.tell", nobody_reads)
    monkeypatch.setattr("hastore_cli.app.error_report.silence_stdout", lambda: None)
    assert run_sim(write_story(place / "story.py", "world.say('well')"), "--out", "out") == 141
    assert list((place / "tmp").iterdir()) == []
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sync-putt",), "there is no scenario 'sync-putt'; did you mean sync-put?"),
        (("--all", "sync-put"), "--all runs every scenario of the catalog: leave the names out"),
        (("1", "--directory", "file"), "'file' is a file"),
        (("1", "--directory", "file/worlds"), "cannot make file/worlds for the worlds"),
    ],
)
def test_a_slip_on_the_command_line_has_a_next_step(place, capsys, arguments, said):
    """Nothing is run and nothing made; the error says what was meant or what to do."""
    (place / "file").write_text("")
    assert run_sim(*arguments) in {1, 2}
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert said in err
    assert not (place / "hastore-runs").exists()

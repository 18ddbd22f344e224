"""`hastore scenario`: list, show and run scenarios; failures set the exit code."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hastore_cli.main import main, root
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import hastore, is_one_line_with_a_next_step
from tests.support.repository import REPO_ROOT

STORY = '''
from hastore_scenarios.story.scenario import scenario

@scenario(title="Wrong", proves="that {what}")
async def {name}(world):
    """Expects what is not so."""
    world.expect({truth}, "this holds")
'''

STARTED = """
async def started(world):
    await world.put(await world.start_master("a"))
    return 0
"""
SKIPPED = """
from hastore_scenarios import ScenarioSkipped, scenario

@scenario(title="Skipped", proves="that it can be")
async def skipped(world):
    raise ScenarioSkipped("there is no moon here")
"""

LIAR = """
from hastore_scenarios import BrokerRole, scenario

@scenario(title="Liar", proves="that the checker reads what is on the disk")
async def liar(world):
    node = await world.start_master("a", role=BrokerRole.ASYNC_MASTER)
    await world.put_many(node, 5)
    await world.stop(node)
    with (world.directory / "a" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(200)
        log.write(b"x")
"""


def story(path: Path, *, truth: bool, name: str = "my_story") -> Path:
    """Write a scenario file whose only expectation is ``truth``; return its path."""
    path.write_text(STORY.format(truth=truth, what="a file can be run", name=name))
    return path


def run_in(place: Path, *arguments: object):
    """Run scenarios with their reports in `place/out` and their worlds in `place`."""
    return hastore_here("scenario", "run", *arguments, "--out", place / "out", TMPDIR=str(place))


def test_scenario_list_prints_the_catalog():
    """As text and as JSON."""
    result = CliRunner().invoke(root, ["scenario", "list", "-o", "json"])
    listed = json.loads(result.output)
    assert listed["schema"] == "hastore.scenarios/1"
    names = [each["name"] for each in listed["scenarios"]]
    assert "sync-put" in names
    text = CliRunner().invoke(root, ["scenario", "list"]).output
    assert all(name in text for name in names)


def test_scenario_show_prints_the_code():
    """With what it proves; a scenario is given by name or number."""
    by_name = CliRunner().invoke(root, ["scenario", "show", "sync-put"]).output
    assert "proves  PUT_OK" in by_name
    assert "async def sync_put(world: World)" in by_name
    assert CliRunner().invoke(root, ["scenario", "show", "1"]).output == by_name


def test_scenario_run_prints_the_timeline_and_the_verdict(tmp_path):
    """The verdict has RTO, RPO and the path of the report; the world is removed."""
    done = hastore("scenario", "run", "flush-slave-timeout", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a: started as SYNC_MASTER" in done.stdout
    assert "a: 10 puts FLUSH_SLAVE_TIMEOUT, " in done.stdout
    assert "held  passed in" in done.stdout
    assert " s  from b: frozen (SIGSTOP) to the next PUT_OK" in done.stdout
    assert "rpo   0  of 1 acknowledged are gone; 11 of unknown outcome, all there" in done.stdout
    (folder,) = (tmp_path / "hastore-runs").iterdir()
    assert folder.name.startswith("flush-slave-timeout-2")
    assert f"out   {folder.relative_to(tmp_path) / 'report.html'}" in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        "history.jsonl",
        "report.html",
        "result.json",
    }
    result = json.loads((folder / "result.json").read_text())
    assert result["outages"][0]["rto_s"] > 1
    assert result["verdict"]["rpo"]["gone"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["hastore-runs"]  # the world was removed
    assert result["directory"] is None  # and is no longer named


def test_failed_story_exits_1_and_keeps_its_directory(tmp_path):
    """The JSON result gives the reason, and the report is written."""
    file = story(tmp_path / "wrong.py", truth=False)
    done = run_in(tmp_path, file, "--directory", tmp_path / "worlds", "-o", "json")
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert (result["passed"], result["failed"]) == (0, 1)
    assert "this holds" in result["results"][0]["failure"]
    assert Path(result["results"][0]["directory"]).is_dir()
    assert (Path(result["results"][0]["out"]) / "report.html").is_file()


def test_lost_acknowledged_put_exits_4(tmp_path):
    """The output and the report name the put; the logs are kept."""
    file = tmp_path / "liar.py"
    file.write_text(LIAR)
    done = run_in(tmp_path, file, "--directory", tmp_path / "worlds")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "broken  FAILED after" in done.stdout
    assert "acknowledged lost: put 0 " in done.stdout
    assert "of 5 acknowledged are gone" in done.stdout
    assert f"kept  {tmp_path / 'worlds' / 'liar'}" in done.stdout
    assert "acknowledged lost: put 0 " in (tmp_path / "out" / "report.html").read_text()


def test_several_scenarios_end_with_a_summary(tmp_path):
    """It counts passes and names failures; each repetition has its own folder."""
    good = story(tmp_path / "good.py", truth=True)
    bad = story(tmp_path / "bad.py", truth=False, name="other_story")
    done = run_in(tmp_path, good, bad, "--repeat", 2)
    assert done.returncode == 1
    assert "2 of 4 scenarios passed; failed: other-story" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "my-story-1",
        "my-story-2",
        "other-story-1",
        "other-story-2",
    ]


def test_exception_in_a_story_is_named_by_its_line(tmp_path):
    """File, line, function, error and source; exit 1, and no traceback."""
    file = tmp_path / "raises.py"
    file.write_text(STORY.format(truth="1 / await started(world)", what="x", name="my_story"))
    with file.open("a") as more:
        more.write(STARTED)
    done = run_in(tmp_path, file, "--world", "sim")
    assert done.returncode == 1
    assert "a: put SLAVE_NOT_AVAILABLE, " in done.stdout
    line = next(line for line in done.stdout.splitlines() if "ZeroDivisionError" in line)
    assert f"{file}:7 in my_story: ZeroDivisionError: division by zero, at: world.exp" in line
    assert (tmp_path / "out" / "report.html").is_file()
    assert "Traceback" not in done.stdout + done.stderr


def test_skipped_story_is_no_failure(tmp_path):
    """It is reported with its reason; exit 0, and no report is written."""
    file = tmp_path / "skipped.py"
    file.write_text(SKIPPED)
    done = run_in(tmp_path, file, "--world", "sim", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert (answer["passed"], answer["failed"], answer["skipped"]) == (0, 0, 1)
    assert answer["results"][0]["skipped"] == "there is no moon here"
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"skipped.py"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_it\n", ":1 in <module>: ModuleNotFoundError: "),
        ("async def story(world)\n    pass\n", ":1: SyntaxError: "),
        ("x = 1\n\ny = z\n", ":3 in <module>: NameError: name 'z' is not defined, at: y = z"),
    ],
)
def test_import_error_of_a_story_file_names_the_line(tmp_path, capsys, text, message):
    """No story runs: exit 2, with a next step."""
    file = tmp_path / "broken.py"
    file.write_text(text)
    assert main(["scenario", "run", str(file), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert f"{file}{message}" in err
    assert not (tmp_path / "out").exists()


def test_scenario_new_writes_a_story_that_passes_in_both_worlds(tmp_path):
    """In the simulator, runs with one seed have equal histories."""
    file = tmp_path / "my_story.py"
    done = hastore_here("scenario", "new", file)
    assert done.returncode == 0, done.stderr
    assert f"hastore scenario run {file}" in done.stdout
    done = run_in(tmp_path, file)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    hashes = []
    for _ in range(2):
        done = run_in(tmp_path, file, "--world", "sim", "--seed", 7)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "my-story (sim, seed 7)" in done.stdout
        hashes.append((out / "history.jsonl").read_bytes())
    assert hashes[0] == hashes[1]


def test_examples_of_the_documentation_pass(tmp_path):
    """They are taken from docs/scenarios.md unchanged."""
    text = (REPO_ROOT / "docs" / "scenarios.md").read_text()
    sources = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for name, source in zip(("classic", "group", "elected"), sources, strict=True):
        file = tmp_path / f"{name}.py"
        file.write_text(source)
        done = run_in(tmp_path, file, "--world", "sim", "--repeat", 3)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 of 3 scenarios passed" in done.stdout


def test_scenario_new_does_not_overwrite_a_file(tmp_path, capsys):
    """It exits with 6 unless --force is given; only names ending in .py are accepted."""
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    assert main(["scenario", "new", str(file)]) == 6
    assert is_one_line_with_a_next_step(capsys.readouterr().err)
    assert file.read_text() == "x = 1\n"
    assert main(["scenario", "new", str(file), "--force"]) == 0
    assert "async def mine(world: World)" in file.read_text()
    assert main(["scenario", "new", str(tmp_path / "story.txt")]) == 2
    assert main(["scenario", "new", str(tmp_path / "no" / "dir.py")]) == 1


def test_impossible_options_are_refused_before_any_run(tmp_path, capsys):
    """--seed outside the simulator, and --out below a file."""
    assert main(["scenario", "run", "sync-put", "--seed", "1"]) == 2
    (tmp_path / "file").write_text("")
    assert main(["scenario", "run", "sync-put", "--out", str(tmp_path / "file" / "x")]) == 1
    err = capsys.readouterr().err
    assert "name another place: --out DIR" in err


def test_unknown_scenario_exits_2_and_lists_the_names(capsys):
    """A file without a scenario also exits with 2."""
    assert main(["scenario", "run", "no-such-story"]) == 2
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert "sync-put" in err
    assert main(["scenario", "run", __file__]) == 2
    assert "holds no scenario" in capsys.readouterr().err

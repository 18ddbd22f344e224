"""`hastore scenario`: the catalog is listed, shown and run, and a failure is an exit code."""

import json
from pathlib import Path

from click.testing import CliRunner

from cli.main import main, root
from tests.cli.running import hastore, is_one_line_with_a_next_step

STORY = '''
from scenarios.registry import scenario

@scenario(title="Wrong", proves="that {what}")
async def my_story(world):
    """Expects what is not so."""
    world.expect({truth}, "this holds")
'''


def story(path: Path, *, truth: bool) -> Path:
    """A scenario file whose only expectation is ``truth``."""
    path.write_text(STORY.format(truth=truth, what="a file can be run"))
    return path


def test_the_catalog_is_listed():
    """Number, name and what it proves, for people and as JSON."""
    result = CliRunner().invoke(root, ["scenario", "list", "-o", "json"])
    listed = json.loads(result.output)
    assert listed["schema"] == "hastore.scenarios/1"
    names = [each["name"] for each in listed["scenarios"]]
    assert "sync-put" in names
    text = CliRunner().invoke(root, ["scenario", "list"]).output
    assert all(name in text for name in names)


def test_a_scenario_is_shown_with_its_text():
    """Its proof, its file, and the code itself, by name or number."""
    by_name = CliRunner().invoke(root, ["scenario", "show", "sync-put"]).output
    assert "proves  PUT_OK" in by_name
    assert "async def sync_put(world: World)" in by_name
    assert CliRunner().invoke(root, ["scenario", "show", "1"]).output == by_name


def test_a_scenario_is_run_and_judged():
    """The timeline goes to stdout as it happens, the end says passed."""
    done = hastore("scenario", "run", "sync-put")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a: started as SYNC_MASTER" in done.stdout
    assert "passed in" in done.stdout


def test_a_story_that_fails_is_exit_1_and_keeps_its_directory(tmp_path):
    """In JSON too, with the reason; the directory is there to be looked into."""
    file = story(tmp_path / "wrong.py", truth=False)
    done = hastore("scenario", "run", file, "--directory", tmp_path / "worlds", "-o", "json")
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert (result["passed"], result["failed"]) == (0, 1)
    assert "this holds" in result["results"][0]["failure"]
    assert Path(result["results"][0]["directory"]).is_dir()


def test_several_scenarios_are_summed_up(tmp_path):
    """The last line counts what passed and names what failed."""
    good = story(tmp_path / "good.py", truth=True)
    bad = story(tmp_path / "bad.py", truth=False)
    done = hastore("scenario", "run", good, bad, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "1 of 2 scenarios passed; failed: my-story" in done.stdout


def test_a_name_that_is_none_is_exit_2_with_the_names_there_are(capsys):
    """Also a file that holds no scenario."""
    assert main(["scenario", "run", "no-such-story"]) == 2
    err = capsys.readouterr().err
    assert is_one_line_with_a_next_step(err)
    assert "sync-put" in err
    assert main(["scenario", "run", __file__]) == 2
    assert "holds no scenario" in capsys.readouterr().err

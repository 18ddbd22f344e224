"""`hastore pipeline run report|export|import` as a user runs them."""

import datetime as dt
import functools
import json
import re
import time

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from tests.support.commands.in_process import run_command
from tests.support.commands.running import is_one_line_with_a_next_step
from tests.support.store.log_builder import FIRST_MS, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def run(capsysbinary):
    """Run a job's command in this process; return exit code, stdout and stderr."""
    return functools.partial(run_command, capsysbinary, "pipeline", "run")


def test_export_applies_filters_and_prints_the_count(run, spark, store, tmp_path):
    """It refuses to overwrite a file."""
    path = tmp_path / "some.jsonl"
    code, out, err = run("export", store, "--to", path, "--queue", 0, "--to-offset", 1000)
    lines = path.read_text().splitlines()
    assert (code, err) == (0, "")
    assert 0 < len(lines) < 30
    assert all(json.loads(line)["physic_offset"] < 1000 for line in lines)
    assert re.search(rf"^messages +{len(lines)}$", out, re.MULTILINE)
    code, out, err = run("export", store, "--to", path)
    assert (code, out) == (2, "")
    assert is_one_line_with_a_next_step(err)
    assert "is there already" in err


@pytest.fixture
def new_york_time(monkeypatch):
    """Set local time to that of New York, four or five hours before UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("spark", "new_york_time")
def test_time_options_have_the_format_of_other_commands(run, tmp_path):
    """A time without a zone is local, as for ``log find``, or an age; the end is left out.

    The options of 0.1.0, whose end is included, go on working, with a note.
    """
    log = LogBuilder()
    for minute in range(10):
        log.add(b"", store_timestamp_ms=FIRST_MS + minute * 60_000)
    path, store = tmp_path / "some.jsonl", log.write(tmp_path / "store")

    def text(minute):
        return str(dt.datetime.fromtimestamp(FIRST_MS / 1000 + minute * 60))  # noqa: DTZ006 - local

    window = f"{text(3)}..{text(5)}"
    code, _, err = run("export", store, "--to", path, "--time", window)
    assert (code, err) == (0, "")
    assert len(path.read_text().splitlines()) == 2
    old = tmp_path / "old.jsonl"
    code, _, err = run("export", store, "--to", old, "--start", text(3), "--end", text(5))
    assert (code, err.count("note: --start and --end end with the next release")) == (0, 1)
    assert len(old.read_text().splitlines()) == 3
    code, _, err = run("export", store, "--to", old, "--start", text(3), "--time", window)
    assert (code, "leave --start and --end out" in err) == (2, True)
    late = tmp_path / "late.jsonl"
    assert run("export", store, "--to", late, "--time", "15min..")[0] == 0
    assert late.read_text() == ""


def test_report_prints_json_and_writes_a_page(run, spark, store, tmp_path):
    """Stdout is one JSON document that names the page."""
    page = tmp_path / "page.html"
    code, out, err = run("report", store, "--html", page, "--by", "queue", "-o", "json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["job"], document["summary"]["messages"]) == ("report", 30)
    assert document["files"] == [str(page)]
    assert [row["messages"] for row in document["rows"]] == [30]
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["import", "{tmp}/none.jsonl", "--to", "127.0.0.1:1"], 2, "does not exist"),
        (["import", "{tmp}/bad.jsonl", "--to", "127.0.0.1:1"], 2, "line 2 is not JSON: oh"),
        (["import", "{tmp}/good.jsonl", "--to", "127.0.0.1:1"], 3, "cannot connect"),
        (["import", "{tmp}/good.jsonl", "--to", "nobody"], 2, "nobody"),
        (["import", "{tmp}/good.jsonl", "--to", "127.0.0.1:1", "--skip", "9"], 2, "has 1 rows"),
        (["export", "{tmp}/nowhere", "--to", "{tmp}/x.csv"], 6, "no such directory"),
        (["export", "{tmp}/whole", "--to", "{tmp}/x"], 2, "which format"),
        (
            ["report", "{tmp}/whole", "--metrics", "{tmp}/bad.jsonl"],
            2,
            "line 2 is not a JSON object",
        ),
        (["report", "{tmp}/nowhere"], 6, "no such directory"),
    ],
)
@pytest.mark.usefixtures("spark", "store")
def test_bad_input_is_one_line_with_a_next_step(run, tmp_path, arguments, expected, message):
    """The error says what is wrong and where; stdout is empty, and nothing is written."""
    (tmp_path / "good.jsonl").write_text('{"topic": "t", "body": "b"}\n')
    (tmp_path / "bad.jsonl").write_text('{"topic": "t", "body": "b"}\noh\n{}\n')
    before = sorted(tmp_path.iterdir())
    code, out, err = run(*(text.format(tmp=tmp_path) for text in arguments))
    assert (code, out) == (expected, "")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert sorted(tmp_path.iterdir()) == before

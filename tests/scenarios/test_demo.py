"""The demo: what a newcomer sees first must work, whatever text it is given."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 600  # on a machine with ten times the work
# Python takes a locale of C for one of UTF-8, unless it is told not to.
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def demo_environment(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the demo a temporary directory of its own, in which everything must be gone."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    (tmp_path / "here").mkdir(exist_ok=True)
    own = {name: value for name, value in os.environ.items() if name not in {"FILE", "KEEP"}}
    return {**own, "TMPDIR": str(tmp_path / "tmp"), **environment}


def run_demo(
    tmp_path: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the demo as `make demo` does, its output not a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "hastore_scenarios.demo.command", *arguments],
        env=demo_environment(tmp_path, environment),
        cwd=tmp_path / "here",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def left_behind(tmp_path: Path) -> list[str]:
    """Name what the demo has left in its temporary directory and where it was started."""
    return [str(path) for place in ("tmp", "here") for path in (tmp_path / place).iterdir()]


def processes_of(tmp_path: Path) -> list[str]:
    """Return the command lines of processes that work below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cwd").readlink()
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if where.is_relative_to(tmp_path) or str(tmp_path).encode() in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.timeout(WITHIN_S + 60)
def test_the_demo_tells_its_story_to_the_end(tmp_path: Path) -> None:
    """Every status and both tools appear, everything is as expected, uncoloured, 80 columns wide.

    The directory stays where it was asked for, and the report in it is drawn of what was put.
    """
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {n}: grüße\n" for n in range(300)))
    kept = tmp_path / "kept"
    done = run_demo(tmp_path, str(text), "--keep", str(kept))
    assert done.returncode == 0, done.stdout
    for words in (
        f"Works in {kept}\nIt stays.\n",
        "300  100.0 %",
        "SLAVE_NOT_AVAILABLE",
        "FLUSH_SLAVE_TIMEOUT",
        "hastore log verify D1",
        "hastore log diff D1 D2",
        "the checker has compared",
        "The whole story",
        "Everything as expected",
        f"  report  {kept}/report.html\n",
        f"  kept    {kept}:",
    ):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    told = done.stdout.partition("1. A master")[2].rpartition("Everything as expected")[0]
    assert str(kept) not in told  # paths are as seen from there
    assert max(map(len, told.splitlines())) <= 80
    assert (kept / "D1" / "commitlog").is_dir()
    page = (kept / "report.html").read_text()
    for words in ("SYNC_MASTER", "killed", "frozen", "FLUSH_SLAVE_TIMEOUT 3", "make demo", "D3"):
        assert words in page
    assert not left_behind(tmp_path)


@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize("moment", ["--data D1", "6. Kill the master"])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    """Ctrl-C ends every process and removes every directory; ASCII is enough for all it says."""
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    seen = []
    with subprocess.Popen(
        [sys.executable, "-m", "hastore_scenarios.demo.command"],
        env=demo_environment(tmp_path, {**ASCII_ONLY, "FILE": str(lines)}),
        cwd=tmp_path / "here",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            seen.append(line)
            if moment.encode() in line:
                demo.send_signal(signal.SIGINT)
                break
        assert moment.encode() in seen[-1], b"".join(seen).decode()
        rest = demo.stdout.read()
        code = demo.wait(timeout=WITHIN_S)
    assert rest.decode("ascii").endswith("interrupted: no process is left\n")
    assert "Traceback" not in rest.decode("ascii")
    assert code == 128 + signal.SIGINT
    assert not processes_of(tmp_path)
    assert not left_behind(tmp_path)
    if moment.startswith("6"):
        assert "   ok the slave is connected and in step - it" in b"".join(seen).decode("ascii")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: No such file"), ("\n \n", "no line of text"), ("", "no line of text")],
)
def test_an_input_that_cannot_be_used_is_an_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    """FILE=… of the environment is heeded; a bad one ends without a traceback or a directory."""
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_text(content)
    done = run_demo(tmp_path, FILE=str(path))
    assert done.returncode == 1
    assert re.fullmatch(rf"error: .*{message}.*\n  next  .*\n", done.stdout)
    assert not left_behind(tmp_path)


def test_a_directory_is_no_input(tmp_path: Path) -> None:
    """FILE=DIR is named as what it is."""
    done = run_demo(tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {tmp_path} cannot be read: Is a directory\n")


def test_a_directory_that_holds_something_is_not_worked_in(tmp_path: Path) -> None:
    """KEEP=DIR begins with nothing: a former demo's log would be gone on with."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine.txt").write_text("mine")
    done = run_demo(tmp_path, KEEP=str(kept))
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {kept} is not empty\n  next  ")
    assert [path.name for path in kept.iterdir()] == ["mine.txt"]
    assert not left_behind(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Where the report can go nowhere, the demo says so before it begins."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "hastore-runs").write_text("a file")
    done = run_demo(tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: cannot make .*/hastore-runs: File exists\n  next  .*\n", done.stdout
    )
    assert not list((tmp_path / "tmp").iterdir())

"""The demo: it runs to its end, can be interrupted, and reports unusable input in one line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hastore.testing.etcd_binary import etcd_binary
from hastore_scenarios.demo import second_act
from hastore_scenarios.demo.command import main

HAS_ETCD = etcd_binary() is not None
SECOND_ACT = "n3 has each of the 12 000 messages" if HAS_ETCD else "There is no etcd here"
WITHIN_S = 600  # enough for a machine under ten times the load
# Python treats the C locale as UTF-8 unless these variables forbid it.
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

RunHere = Callable[..., tuple[int, str]]  # exit code, output


def demo_environment(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which the demo has its own temporary directory."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    (tmp_path / "here").mkdir(exist_ok=True)
    own = {name: value for name, value in os.environ.items() if name not in {"FILE", "KEEP"}}
    return {**own, "TMPDIR": str(tmp_path / "tmp"), **environment}


def run_demo(
    tmp_path: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the demo as `make demo` does, but without a terminal."""
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


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunHere:
    """Return a function that runs a demo that starts nothing, in this process."""

    def run(*arguments: str, **environment: str) -> tuple[int, str]:
        for name, value in demo_environment(tmp_path, environment).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        monkeypatch.setattr(sys, "argv", ["demo", *arguments])
        monkeypatch.chdir(tmp_path / "here")
        code = main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def left_behind(tmp_path: Path) -> list[str]:
    """List what the demo has left in its temporary and its working directory."""
    return [str(path) for place in ("tmp", "here") for path in (tmp_path / place).iterdir()]


def processes_of(tmp_path: Path) -> list[str]:
    """Return the command lines of the processes that run below a directory or name it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cwd").readlink()
            command = (process / "cmdline").read_bytes()
        except OSError:  # the process has ended meanwhile
            continue
        if where.is_relative_to(tmp_path) or str(tmp_path).encode() in command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.timeout(WITHIN_S + 60)
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    """All expectations hold; the output has no colours and at most 80 columns.

    `--keep` names a directory that remains, with a report of the puts.
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
        SECOND_ACT,
        "Everything as expected",
        f"  report  {kept}/report.html\n",
        f"  kept    {kept}:",
    ):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    shown = done.stdout.partition("1. A master")[2].rpartition("Everything as expected")[0]
    assert str(kept) not in shown  # paths are relative to it
    assert max(map(len, shown.splitlines())) <= 80
    assert (kept / "D1" / "commitlog").is_dir()
    page = (kept / "report.html").read_text()
    for words in ("SYNC_MASTER", "killed", "frozen", "FLUSH_SLAVE_TIMEOUT 3", "make demo", "D3"):
        assert words in page
    if HAS_ETCD:  # its chart, with its nodes, and its figures
        act = page.partition(second_act.TITLE)[2]
        assert "of 12000 acknowledged are gone, in each node" in act
        assert "12000 PUT_OK" in act
        for words in ("n1", "n2", "n3", "killed (SIGKILL)", "elected master", "<svg"):
            assert words in act
    assert not left_behind(tmp_path)


@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.parametrize(
    "moment",
    [
        "--data D1",
        pytest.param("6. Kill the master", marks=pytest.mark.soak),
        pytest.param("hastore cluster status", marks=pytest.mark.soak),  # near the end
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    """Ctrl-C ends all processes and removes all directories; an ASCII locale gets ASCII."""
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    if "cluster" in moment and not HAS_ETCD:
        pytest.skip("no etcd on PATH, nor from the extra cluster")
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
def test_an_unusable_input_is_an_error(
    tmp_path: Path, run_here: RunHere, content: str | None, message: str
) -> None:
    """The variable FILE names the input; a bad one causes no traceback and leaves no directory."""
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_text(content)
    code, output = run_here(FILE=str(path))
    assert code == 1
    assert re.fullmatch(rf"error: .*{message}.*\n  next  .*\n", output)
    assert not left_behind(tmp_path)


def test_a_directory_as_input_is_an_error(tmp_path: Path) -> None:
    """The message says that the path is a directory."""
    done = run_demo(tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {tmp_path} cannot be read: Is a directory\n")


def test_a_kept_directory_must_be_empty(tmp_path: Path, run_here: RunHere) -> None:
    """The demo would otherwise continue the log of an earlier run."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine.txt").write_text("mine")
    code, output = run_here(KEEP=str(kept))
    assert code == 1
    assert output.startswith(f"error: {kept} is not empty\n  next  ")
    assert [path.name for path in kept.iterdir()] == ["mine.txt"]
    assert not left_behind(tmp_path)


def test_an_unwritable_report_folder_is_an_error(tmp_path: Path, run_here: RunHere) -> None:
    """The demo fails before it starts a node."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "hastore-runs").write_text("a file")
    code, output = run_here()
    assert code == 1
    assert re.fullmatch(r"error: cannot make .*/hastore-runs: File exists\n  next  .*\n", output)
    assert not list((tmp_path / "tmp").iterdir())

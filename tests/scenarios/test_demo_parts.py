"""The demo's parts: its input, its folders, its output, and the merging of histories."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio
from rich.console import Console

from hastore.errors import ConfigError
from hastore.status import PutMessageStatus
from hastore_scenarios.demo import command, demo, place, second_act
from hastore_scenarios.demo import input as demo_input
from hastore_scenarios.demo.input import LINE_SIZE_MAX, LINES_MAX, read_input
from hastore_scenarios.demo.place import DemoPlace
from hastore_scenarios.demo.report import take_puts, write_history
from hastore_scenarios.demo.stage import DemoStage, command_lines
from hastore_scenarios.demo.terminal import run_on_terminal, speak_ascii
from hastore_scenarios.escaping_console import EscapingConsole
from hastore_scenarios.judge.history import EventKind, History, load_history
from hastore_scenarios.judge.timeline import Timeline
from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one
from hastore_scenarios.worlds.process.child_process import ChildProcess
from tests.support.repository import REPO_ROOT

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import Operation


# -- the second act


async def test_without_an_etcd_the_second_act_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, starts nothing, and nothing is wrong."""
    monkeypatch.setattr(second_act, "etcd_binary", lambda: None)
    output = io.StringIO()
    stage = DemoStage(tmp_path, Console(file=output, width=80))
    assert await second_act.second_act(stage) == []
    assert "There is no etcd here" in output.getvalue()
    assert "hastore up" not in output.getvalue()
    assert (stage.failures, list(tmp_path.iterdir())) == ([], [])


# -- the input


def test_a_file_with_too_many_lines_is_cut(tmp_path: Path) -> None:
    """The note says how many lines of how many are sent, and why."""
    file = tmp_path / "many.txt"
    file.write_text("line\n\n" * (LINES_MAX + 5))
    given = read_input(str(file))
    assert len(given.lines) == LINES_MAX
    assert given.cut_note is not None
    assert f"20 000 of 20 005 lines of {file} are sent: " in given.cut_note
    assert "to be over in a minute" in given.cut_note


def test_a_file_with_too_many_bytes_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few long lines can be too much, too; nothing after the cut is sent."""
    monkeypatch.setattr(demo_input, "BYTES_MAX", 100)
    file = tmp_path / "long.txt"
    file.write_text("x" * 60 + "\n" + "y" * 60 + "\n" + "z\n")
    given = read_input(str(file))
    assert given.lines == (b"x" * 60,)
    assert given.cut_note is not None
    assert given.cut_note.startswith("1 of 3 lines")


def test_a_small_file_is_sent_whole(tmp_path: Path) -> None:
    """Lines may hold any bytes; blank lines are left out without a note."""
    file = tmp_path / "binary"
    file.write_bytes(b"\x00\xff\xfe one\r\n \t \n\n\x80two")
    given = read_input(str(file))
    assert given.lines == (b"\x00\xff\xfe one", b"\x80two")
    assert given.text == b"\x00\xff\xfe one\n\x80two\n"
    assert given.cut_note is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_too_long_line_is_shortened(tmp_path: Path, end: bytes) -> None:
    """The next line is sent separately."""
    file = tmp_path / "long"
    fits, too_long = b"x" * LINE_SIZE_MAX, b"y" * (3 * LINE_SIZE_MAX)
    file.write_bytes(fits + b"\n" + too_long + (end + b"after" if end else b""))
    given = read_input(str(file))
    assert given.lines[:2] == (fits, b"y" * LINE_SIZE_MAX)
    assert given.lines[2:] == ((b"after",) if end else ())
    assert given.cut_note == "1 line longer than 64 KiB: only the beginning is sent"


def test_an_endless_file_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file is a device or a pipe that stays open."""
    monkeypatch.setattr(demo_input, "READ_MAX", 1 << 20)
    given = read_input("/dev/zero")
    assert given.lines == (bytes(LINE_SIZE_MAX),)
    assert given.cut_note == (
        "/dev/zero is read up to 1 MiB, to be over in a minute;"
        " 1 line longer than 64 KiB: only the beginning is sent"
    )


def test_the_git_history_is_that_of_this_repository() -> None:
    """A clone's directory is the one that has .git."""
    assert demo_input._ROOT == REPO_ROOT


def test_without_a_git_history_the_source_code_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of the repository has no .git, and an installed package no repository."""
    monkeypatch.setattr(demo_input, "_ROOT", tmp_path)
    given = read_input(None)
    assert given.source == "hastore's own source code"
    assert len(given.lines) > 5_000


def test_a_failing_git_falls_back_to_the_source_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git may be missing, or refuse a repository that another user owns."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(demo_input, "_ROOT", tmp_path)
    assert read_input(None).source == "hastore's own source code"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_input(None).source == "hastore's own source code"


# -- the place


def test_two_demos_in_one_second_use_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary directories, and folders without a report, are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    with DemoPlace.open(None) as one:
        with DemoPlace.open(None) as other:
            assert one.folder != other.folder
            assert one.directory != other.directory
            (other.folder / "report.html").write_text("written")
        assert not other.directory.exists()
        assert other.folder.is_dir()
    assert [path.name for path in (tmp_path / "hastore-runs").iterdir()] == [other.folder.name]


def test_too_little_disk_space_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how much is free, how much is needed, and what to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(place, "FREE_MIN", 1 << 60)
    with (
        pytest.raises(ConfigError, match="MiB free, the demo needs") as caught,
        DemoPlace.open(None),
    ):
        pass
    assert caught.value.hint is not None
    assert not list(tmp_path.iterdir())


def test_ctrl_c_during_the_imports_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports take seconds on a busy machine; an interrupt then shows no traceback."""

    def run(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "hastore_scenarios.demo.demo", SimpleNamespace(run=run))
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert command.main() == 130
    assert capsys.readouterr().err == "interrupted: no process is left\n"


# -- what is shown


def test_a_long_command_is_wrapped_between_its_options() -> None:
    """No line exceeds the width, and an option stays with its value."""
    words = "hastore master --data D1 --mapped-file-size 64MiB --broker-role SYNC_MASTER -n 5 &"
    lines = command_lines(words.split(" "), 40)
    assert lines == [
        "hastore master --data D1",
        "--mapped-file-size 64MiB",
        "--broker-role SYNC_MASTER -n 5 &",
    ]
    assert command_lines(["hastore", "status", "D1"], 40) == ["hastore status D1"]


async def test_a_command_runs_on_a_terminal_of_the_given_width(tmp_path: Path) -> None:
    """Its stdout is a terminal, its stderr is not; both come back with the exit code."""
    code = (
        "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size(1).columns, os.getcwd());"
        "print('x' * 200_000); print(sys.stderr.isatty(), file=sys.stderr); sys.exit(7)"
    )
    exit_code, text = await run_on_terminal(
        [sys.executable, "-c", code], os.environ, cwd=tmp_path, width=61
    )
    assert exit_code == 7
    assert text == f"True 61 {tmp_path}\n{'x' * 200_000}\nFalse\n"


def test_speak_ascii_replaces_other_characters() -> None:
    """Marks and dashes have replacements; other characters become question marks."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    speak_ascii(stream)
    stream.write("✓ 1\N{NO-BREAK SPACE}000 … — ü")
    stream.flush()
    assert raw.getvalue() == b"ok 1 000 ... - ?"


def test_summary_lines_are_wrapped_but_paths_are_not(tmp_path: Path) -> None:
    """Lines are wrapped at 80 columns and continue below the text's first column."""
    out = io.StringIO()

    async def print_facts() -> None:
        stage = DemoStage(tmp_path, Console(file=out, width=80))
        stage.fact("cut", "many words " * 12)
        stage.fact("report", "/" + "x" * 100)

    trio.run(print_facts)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("  cut     many words")
    assert lines[1].startswith("          many words") or lines[1].startswith("          words")
    assert max(map(len, lines[:2])) <= 80
    assert lines[2] == "  report  /" + "x" * 100


def test_no_text_of_a_node_or_a_file_controls_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control characters and marks that reverse text are shown as escapes; colours are the demo's.

    An error of an input file goes the same way.
    """
    monkeypatch.setenv("TERM", "xterm")
    hostile = "n1\x1b[2J\x1b]0;owned\x07\r\u202e\x9b"
    out = io.StringIO()

    async def show() -> None:
        stage = DemoStage(tmp_path, EscapingConsole(file=out, width=80, force_terminal=True))
        stage.step(hostile)
        stage.say(hostile)
        stage.note("seen", hostile)
        stage.expect(False, hostile, hostile)
        stage.fact("kept", hostile)
        stage.print_timeline()
        stage._show_output(f"before\n{hostile}\n", 1)

    trio.run(show)
    demo._print_error(ConfigError(hostile, hint=hostile))
    printed = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # its own colours
    for text in (printed, capsys.readouterr().err):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "n1" in text


@pytest.mark.parametrize(("count", "left_out"), [(12, None), (13, None), (14, 2), (40, 28)])
def test_output_is_shortened_only_if_that_saves_lines(
    tmp_path: Path, count: int, left_out: int | None
) -> None:
    """A note in place of a single line would hide that line for nothing."""
    out = io.StringIO()
    printed = "".join(f"line {number}\n" for number in range(count))

    async def show() -> None:
        stage = DemoStage(tmp_path, Console(file=out, width=80))
        command = [sys.executable, "-c", f"print({printed!r}, end='')"]
        child = ChildProcess.start(command, tmp_path / "out.txt", cwd=tmp_path)
        await stage.finish_command(child, output="out.txt")

    trio.run(show)
    shown = [line.strip() for line in out.getvalue().splitlines()]
    note = [] if left_out is None else [f"… {left_out} more lines …"]
    assert [line for line in shown if "more lines" in line] == note
    assert len(shown) == count - (left_out or 0) + len(note)
    assert shown[-1] == f"line {count - 1}"


# -- the history


def write_produced(path: Path, began_wall_s: float, keys: list[str]) -> None:
    """Write a file like `hastore produce --history`: its times count from its first message."""
    clock = 0.0
    with path.open("w", encoding="utf-8") as sink:
        history = History(
            now_s=lambda: clock, wall_ms=lambda: int((began_wall_s + clock) * 1000), sink=sink
        )
        for key in keys:
            put: Operation = history.invoke(
                node="127.0.0.1:1",
                process="p",
                topic="Demo",
                queue_id=0,
                key=key,
                body_size=1,
                body_crc=1,
                wait=True,
            )
            clock += 0.25
            history.complete(put, PutMessageStatus.PUT_OK)


def test_histories_of_several_producers_are_merged(tmp_path: Path) -> None:
    """Times count from the demo's start and numbers from its first put; the file can be loaded."""
    write_produced(tmp_path / "later", 1_010.0, ["c"])
    write_produced(tmp_path / "first", 1_002.0, ["a", "b"])
    history = History(now_s=lambda: 5.0, wall_ms=lambda: 1_005_000)
    history.event(EventKind.SAY, text="in between")
    take_puts(history, tmp_path / "later", node="D2", began_wall_s=1_000.0)
    take_puts(history, tmp_path / "first", node="D1", began_wall_s=1_000.0)
    write_history(history, tmp_path / "all")
    with (tmp_path / "all").open(encoding="utf-8") as lines:
        read = load_history(lines)
    puts = [(put.op, put.key, put.node, put.invoked_s, put.completed_s) for put in read.operations]
    assert puts == [
        (0, "a", "D1", 2.0, 2.25),
        (1, "b", "D1", 2.25, 2.5),
        (2, "c", "D2", 10.0, 10.25),
    ]
    text = (tmp_path / "all").read_text()
    assert text.index('"key":"b"') < text.index("in between") < text.index('"key":"c"')


def test_a_timeline_made_afterwards_equals_the_live_one() -> None:
    """It begins with the lines that appeared during the run."""
    (scenario,) = find("promotion")
    result = run_one(scenario, world=WorldKind.SIM, seed=7)
    assert result.history is not None
    assert tuple(Timeline.of(result.history).entries)[: len(result.timeline)] == result.timeline

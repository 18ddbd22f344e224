"""Long lines on a terminal wrap between words, and nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hastore_cli.app.terminal import fold
from hastore_scenarios.demo.terminal import run_on_terminal
from hastore_scenarios.worlds.process.child_process import child_environment, hastore_command

TEXT = "     0.142 s  as expected: its log is as it was (ends_at=83170 parted_at=59250)"


def test_lines_wrap_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuation lines are indented; a path is never broken, however long."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert fold(TEXT, hang=14) == [
        "     0.142 s  as expected: its log is as",
        "              it was (ends_at=83170",
        "              parted_at=59250)",
    ]
    path = "/tmp/" + "x" * 60
    assert fold(f"kept {path}", hang=2) == ["kept", f"  {path}"]
    assert fold("", hang=2) == [""]


def test_lines_do_not_wrap_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a file gets each line whole, however long."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.setenv("COLUMNS", "40")
    assert fold(TEXT, hang=14) == [TEXT]


@pytest.mark.timeout(300)
async def test_scenario_output_fits_80_columns(tmp_path: Path) -> None:
    """Covers the headline, the timeline and the verdict."""
    code, text = await run_on_terminal(
        hastore_command("scenario", "run", "parted-logs", "--world", "sim", "--out", "out"),
        {**child_environment(), "NO_COLOR": "1"},
        cwd=tmp_path,
        width=80,
    )
    assert code == 0, text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [
        "09 parted-logs (sim, seed 0): a former master whose log has diverged is refused",
        "   and named, its log is not changed, and it does not count as a slave",
    ]
    assert "  out   out/report.html" in lines

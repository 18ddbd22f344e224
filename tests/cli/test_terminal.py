"""Text too long for a terminal line wraps at words and continues below its start."""

import contextlib
import io
import os
import pty
import sys
from pathlib import Path

import pytest

from hastore_cli.app.terminal import fitted, folded, packed, rendered, say, style, wrap
from hastore_cli.status.explain import split_head
from tests.cli.on_a_terminal import on_a_terminal


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """A terminal of 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")


def test_text_is_folded_at_words_below_its_start():
    """The label may be coloured; a word longer than a line stays whole."""
    head = style("why", fg="cyan") + "  "
    text = "no slave is connected; the last was 127.0.0.1:44376: closed by the slave"
    lines = rendered(folded(head, text, Terminal()), colour=True).split("\n")
    assert lines[0] == "\x1b[36mwhy\x1b[0m  no slave is connected; the last was"
    assert lines[1:] == ["     127.0.0.1:44376: closed by the", "     slave"]
    assert folded("", "a" * 50, Terminal()) == "a" * 50
    assert folded("x ", "short", Terminal()) == "x short"
    words = folded(" ", " ".join(["word"] * 9), Terminal(), hang=2)
    assert rendered(words, colour=False).split("\n") == [
        " " + " ".join(["word"] * 7),
        "   word word",
    ]


def test_pipe_gets_one_line():
    """The text is never folded there."""
    assert folded("why  ", "word " * 100, io.StringIO()) == "why  " + "word " * 100
    assert wrap("", 10) == [""]


def test_parts_share_a_line_while_there_is_room():
    """No part is split, so a number stays with its unit."""
    parts = ["total  2 000", "1 367 msg/s", "p50 360.6 ms", "p99 594.5 ms"]
    assert packed(parts, 80, hang=7) == ["  ".join(parts)]
    assert packed(parts, 41, hang=7) == ["  ".join(parts[:3]), "       p99 594.5 ms"]
    assert packed(parts, 25, hang=7) == [
        "total  2 000  1 367 msg/s",
        "       p50 360.6 ms",
        "       p99 594.5 ms",
    ]


def test_clipped_line_ends_with_an_ellipsis(monkeypatch):
    """It is never cut inside a wide character."""
    monkeypatch.setattr("sys.stdout", Terminal())
    assert fitted("x" * 40) == "x" * 40
    assert fitted("x" * 41) == "x" * 39 + "…"
    assert fitted("日" * 21) == "日" * 19 + "…"


@pytest.mark.parametrize(
    ("line", "head"),
    [
        ("   why   text", "   why   "),
        ("   next  hastore", "   next  "),
        (" 17:08:07.923  PUT_OK", " "),
        ("n1  SYNC_MASTER", ""),
    ],
)
def test_explain_line_has_a_head(line, head):
    """The head is the label, or else the indentation."""
    assert split_head(line) == (head, line.removeprefix(head))


def test_errors_and_findings_fit_80_columns(tmp_path):
    """Long reasons are folded; next steps are not, so that they can be copied."""
    (tmp_path / "D1").mkdir()
    for arguments in (
        ["log", "info", "D1"],
        ["doctor", "127.0.0.1:1", "D1"],
        ["consume", "orders", "--addr", "127.0.0.1:1", "--from", "somewhere-else-entirely"],
    ):
        _, lines = on_a_terminal(*arguments, cwd=tmp_path, COLUMNS="80")
        assert lines
        for line in lines:
            assert len(line) <= 80 or " next  " in line, line


def test_ready_message_fits_80_columns(tmp_path):
    """It lists all ports, including that of the metrics."""
    ports = ("--listen", "127.0.0.1:0", "--ha-listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    _, lines = on_a_terminal(
        *("master", "--data", "D1", *ports), cwd=tmp_path, until=lambda shown: "  next  " in shown
    )
    ready = next(at for at, line in enumerate(lines) if line.startswith("ready: "))
    assert any("metrics http://" in line for line in lines[ready:])
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nobody_is_told_where_nobody_listens(monkeypatch, is_terminal):
    """A node whose terminal is gone stops, whatever it says meanwhile."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    os.close(ours)
    stream = os.fdopen(theirs, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)
    say("ready")
    with pytest.raises(OSError, match=r"Input/output error|Broken pipe"):
        stream.close()  # what was said is still there, and nobody takes it


def test_another_error_of_stderr_is_not_hidden(monkeypatch):
    """As of a full disk."""
    with contextlib.suppress(OSError), Path("/dev/full").open("w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(OSError, match="No space left"):
            say("ready")

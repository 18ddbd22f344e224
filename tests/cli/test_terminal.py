"""What is too long for a line of a terminal is continued below where it began, at a word."""

import io

import pytest
from click import style

from hastore_cli.app.terminal import fitted, folded, packed, wrap
from hastore_cli.status.explain import split_head
from tests.cli.on_a_terminal import on_a_terminal


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """A terminal of forty columns."""
    monkeypatch.setenv("COLUMNS", "40")


def test_a_text_is_folded_at_words_below_where_it_began():
    """A label may be coloured; what is longer than a line by itself stays whole."""
    head = style("why", fg="cyan") + "  "
    text = "no slave is connected; the last was 127.0.0.1:44376: closed by the slave"
    lines = folded(head, text, Terminal()).split("\n")
    assert lines[0] == head + "no slave is connected; the last was"
    assert lines[1:] == ["     127.0.0.1:44376: closed by the", "     slave"]
    assert folded("", "a" * 50, Terminal()) == "a" * 50
    assert folded("x ", "short", Terminal()) == "x short"
    words = folded(" ", " ".join(["word"] * 9), Terminal(), hang=2).split("\n")
    assert words == [" " + " ".join(["word"] * 7), "   word word"]


def test_a_pipe_gets_one_line():
    """However long."""
    assert folded("why  ", "word " * 100, io.StringIO()) == "why  " + "word " * 100
    assert wrap("", 10) == [""]


def test_parts_stand_side_by_side_while_there_is_room():
    """None is broken in two: a number stays with its unit."""
    parts = ["total  2 000", "1 367 msg/s", "p50 360.6 ms", "p99 594.5 ms"]
    assert packed(parts, 80, hang=7) == ["  ".join(parts)]
    assert packed(parts, 41, hang=7) == ["  ".join(parts[:3]), "       p99 594.5 ms"]
    assert packed(parts, 25, hang=7) == [
        "total  2 000  1 367 msg/s",
        "       p50 360.6 ms",
        "       p99 594.5 ms",
    ]


def test_a_line_that_is_clipped_says_so(monkeypatch):
    """With an ellipsis in its last column, and no half of a wide character."""
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
def test_a_line_of_explain_has_a_head(line, head):
    """Its label, or how far it is indented."""
    assert split_head(line) == (head, line.removeprefix(head))


def test_errors_and_findings_keep_to_80_columns(tmp_path):
    """A long reason is folded; only what is there to be copied is not."""
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


def test_what_a_node_says_when_it_is_ready_keeps_to_80_columns(tmp_path):
    """All its ports, that of metrics too."""
    ports = ("--listen", "127.0.0.1:0", "--ha-listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    _, lines = on_a_terminal(
        *("master", "--data", "D1", *ports), cwd=tmp_path, until=lambda shown: "  next  " in shown
    )
    ready = next(at for at, line in enumerate(lines) if line.startswith("ready: "))
    assert any("metrics http://" in line for line in lines[ready:])
    assert all(len(line) <= 80 for line in lines)

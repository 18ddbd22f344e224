"""A message takes one line of a terminal, cut to its width; a pipe gets all of it."""

import pytest
from rich.cells import cell_len

from tests.cli.live_node import master_with
from tests.cli.on_a_terminal import on_a_terminal
from tests.support.commands.in_process import hastore_here
from tests.support.store.log_builder import LogBuilder

BODIES = {
    "long": b"x" * 500,
    "lines": b"one\ntwo\r\nthree\tfour",
    "escapes": b"\x1b]0;title\x07\x1b[2J",
    "wide": "日本語のとても長いテキスト、何行にもなる。".encode() * 3,
    "binary": b"\xff\xfe\x00\x01",
}


@pytest.fixture
def store(tmp_path):
    """A log with one message for each kind of body."""
    builder = LogBuilder()
    for key, body in BODIES.items():
        builder.add(body, key=key)
    return builder.write(tmp_path / "D1")


def shown(store, columns=80, **extra):
    code, lines = on_a_terminal("log", "cat", store, columns=columns, **extra)
    assert code == 0
    return dict(zip(BODIES, lines, strict=True))  # one line per message


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_message_takes_one_line_of_a_terminal(store, columns):
    """A line that does not fit ends with an ellipsis."""
    lines = shown(store, columns)
    assert all(cell_len(line) <= columns for line in lines.values())
    assert lines["long"].endswith("x…" if columns > 80 else "…")
    assert lines["wide"].endswith("…")


def test_control_characters_of_a_body_are_escaped(store):
    """Line ends and escape sequences are printed as escapes, binary bodies as hex."""
    lines = shown(store, 200)
    assert lines["lines"].endswith(r"  one\ntwo\r\nthree\tfour")
    assert lines["escapes"].endswith(r"  \x1b]0;title\x07\x1b[2J")
    assert lines["binary"].endswith("  (fffe0001…)")
    assert "\x1b" not in "".join(lines.values())


def test_ascii_ellipsis_fits_the_terminal(store):
    """Three dots are wider than one character, and an escape takes six."""
    lines = shown(store, 100, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert lines["long"].endswith("xx...")
    assert lines["wide"].endswith("...")
    assert r"  \u65e5\u672c" in lines["wide"]
    assert all(len(line) <= 100 and line.isascii() for line in lines.values())


def test_pipe_gets_every_body_whole(store):
    """Tables escape line ends; a format prints the body byte for byte."""
    out = hastore_here("log", "cat", store).stdout
    assert out.count("\n") == len(BODIES)
    assert "x" * 500 in out
    assert BODIES["wide"].decode() in out
    one = hastore_here("log", "find", store, "-k", "lines", "-F", "%s").stdout
    assert one.encode() == BODIES["lines"]


def test_every_listing_command_fits_the_terminal(tmp_path):
    """`find`, `tail`, `get` and `consume`, from files and from a node."""
    with master_with(tmp_path / "D1") as master:
        body = b"y" * 300 + b"\n"
        assert hastore_here("produce", "t", "--addr", master.address, "-k", "k", stdin=body).stdout
        for arguments in (
            ["consume", "t", "-e", "--addr", master.address],
            ["get", "--key", "k", "--topic", "t", "--addr", master.address],
            ["get", "--key", "k", "--dir", master.data],
            ["log", "find", master.data, "--topic", "t"],
            ["log", "tail", master.data],
        ):
            code, lines = on_a_terminal(*arguments)
            assert code == 0, arguments
            # An erased progress bar may precede the text of the line.
            (line,) = [line.rpartition("\x1b[2K")[2] for line in lines if "300 B" in line]
            assert len(line) == 80, arguments
            assert line.endswith("y…"), arguments


def test_get_by_offset_keeps_the_lines_of_a_body(tmp_path):
    """All of it is shown, but carriage returns are escaped, as they would overwrite text."""
    store = LogBuilder().add(b"first\nsafe\rrm -rf /\n").write(tmp_path / "D1")
    _, lines = on_a_terminal("get", "--offset", 0, "--dir", store)
    assert lines[-3:] == ["first", r"safe\rrm -rf /", ""]
    printed = hastore_here("get", "--offset", 0, "--dir", store).stdout
    assert printed.endswith("first\nsafe\\rrm -rf /\n\n")

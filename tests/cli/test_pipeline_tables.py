"""Tables of the pipeline jobs on terminals of several widths."""

import io

import pytest
from rich.console import Console

from hastore_cli.pipeline import run as pipeline_run

FINDING = {
    "severity": "damage",
    "kind": "bad-body-crc",
    "store": "../n2",
    "offset": 275800,
    "topic": "orders",
    "queue_id": 0,
    "queue_offset": 1200,
    "detail": "body CRC stored 031d45f2 computed 550a9629",
}


@pytest.fixture
def printed(monkeypatch):
    """A function that prints a table on a terminal of a given width and returns its lines."""

    def call(rows, width, *, is_terminal=True):
        out = io.StringIO()
        console = Console(
            file=out, width=width, height=24, force_terminal=is_terminal, color_system=None
        )
        monkeypatch.setattr(pipeline_run, "make_console", lambda: console)
        pipeline_run._print_table(list(rows[0]), rows)
        return [line.rstrip() for line in out.getvalue().splitlines()]

    return call


def test_table_that_fits_has_one_line_per_row(printed):
    """The header has all columns."""
    head, row = printed([FINDING], 200)
    assert head.split() == list(FINDING)
    assert row.endswith(FINDING["detail"])


def test_longest_text_moves_below_its_row_if_it_does_not_fit(printed):
    """No value is folded or cut."""
    other = FINDING | {"offset": 1, "detail": None}
    lines = printed([FINDING, other], 80)
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == list(FINDING)[:-1]
    assert lines[1].split()[:4] == ["damage", "bad-body-crc", "../n2", "275800"]
    assert lines[2] == f"    {FINDING['detail']}"
    assert lines[3].split()[3] == "1"
    assert len(lines) == 4


def test_values_wider_than_the_terminal_are_folded(printed):
    """At 40 columns, the row takes several lines, without losing a character."""
    lines = printed([FINDING], 40)
    assert all(len(line) <= 40 for line in lines)
    assert len(lines) > 4
    shown, expected = "".join(lines), "".join(f"{name}{value}" for name, value in FINDING.items())
    assert sorted(shown.replace(" ", "")) == sorted(expected.replace(" ", ""))


def test_row_is_one_line_without_a_terminal(printed):
    """So awk can read it, however wide it is."""
    assert len(printed([FINDING], 1000, is_terminal=False)) == 2

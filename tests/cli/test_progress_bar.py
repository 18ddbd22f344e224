"""A progress bar is drawn on stderr; results go only to stdout."""

import json

import pytest

from tests.cli.live_node import master_with, produce
from tests.cli.on_a_terminal import on_a_terminal

# All tests of this file share one node, so they run in one worker.
pytestmark = pytest.mark.xdist_group("progress-bar")

BODIES = ["short", "x" * 300]  # wider than the terminal


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master with two messages in topic `orders`."""
    with master_with(tmp_path_factory.mktemp("bar") / "D1") as running:
        produce(running.address, "orders", BODIES)
        yield running


def run_into(path, *arguments, **options):
    """Run a command with stdout in a file and stderr on a terminal; return both outputs."""
    with path.open("wb") as stdout:
        code, lines = on_a_terminal(*arguments, stdout=stdout, **options)
    assert code == 0, lines
    return path.read_text(), "\n".join(lines)


def test_consumed_messages_go_only_to_the_file(master, tmp_path):
    """Each on one line, however narrow the terminal with the bar is."""
    arguments = ("consume", "orders", "-e", "--addr", master.address, "-o", "jsonl")
    out, shown = run_into(tmp_path / "out", *arguments)
    assert [json.loads(line)["body"] for line in out.splitlines()] == BODIES
    assert "short" not in shown


def test_outcomes_of_produce_go_only_to_the_file(master, tmp_path):
    """There is one line per message."""
    arguments = ("produce", "other", "--addr", master.address)
    out, shown = run_into(tmp_path / "out", *arguments, stdin=b"one\ntwo\n")
    assert [line.split()[0] for line in out.splitlines()] == ["PUT_OK"] * 2
    assert "PUT_OK" not in shown


def test_task_bar_shows_no_count_before_it_is_known(master, tmp_path):
    """The count is unknown while Spark starts; without Java it never starts."""
    pytest.importorskip("pyspark")
    arguments = ("pipeline", "run", "verify", master.data)
    code, lines = on_a_terminal(*arguments, JAVA_HOME=str(tmp_path))
    shown = "\n".join(lines)
    assert code != 0
    assert "starting Spark" in shown
    assert "0/?" not in shown

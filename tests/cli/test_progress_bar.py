"""A bar is drawn on stderr, and what goes to stdout stays there."""

import json

import pytest

from tests.cli.live_node import master_with, produce
from tests.cli.on_a_terminal import on_a_terminal

# One node for all of them.
pytestmark = pytest.mark.xdist_group("progress-bar")

BODIES = ["short", "x" * 300]  # wider than the terminal


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master with two messages in the topic `orders`."""
    with master_with(tmp_path_factory.mktemp("bar") / "D1") as running:
        produce(running.address, "orders", BODIES)
        yield running


def run_into(path, *arguments, **options):
    """Run a command whose stdout is a file and whose stderr is a terminal; gives both."""
    with path.open("wb") as stdout:
        code, lines = on_a_terminal(*arguments, stdout=stdout, **options)
    assert code == 0, lines
    return path.read_text(), "\n".join(lines)


def test_consumed_messages_go_to_the_file_and_not_to_the_terminal(master, tmp_path):
    """Each on one line, however narrow the terminal is on which the bar is."""
    arguments = ("consume", "orders", "-e", "--addr", master.address, "-o", "jsonl")
    out, shown = run_into(tmp_path / "out", *arguments)
    assert [json.loads(line)["body"] for line in out.splitlines()] == BODIES
    assert "short" not in shown


def test_what_became_of_a_message_goes_to_the_file(master, tmp_path):
    """The lines of `produce` as well."""
    arguments = ("produce", "other", "--addr", master.address)
    out, shown = run_into(tmp_path / "out", *arguments, stdin=b"one\ntwo\n")
    assert [line.split()[0] for line in out.splitlines()] == ["PUT_OK"] * 2
    assert "PUT_OK" not in shown


def test_a_bar_of_tasks_says_nothing_before_it_knows_how_many_there_are(master, tmp_path):
    """While Spark starts there is no count; without a Java it does not start."""
    pytest.importorskip("pyspark")
    arguments = ("pipeline", "run", "verify", master.data)
    code, lines = on_a_terminal(*arguments, JAVA_HOME=str(tmp_path))
    shown = "\n".join(lines)
    assert code != 0
    assert "starting Spark" in shown
    assert "0/?" not in shown

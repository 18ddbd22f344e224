"""``hastore consume`` against a live node: starting points, groups, formats and exit codes."""

import functools
import json
import signal
import subprocess
import threading

import pytest

from hastore_cli.consume.run import ConsumeStart, StartKind, parse_start
from hastore_cli.main import main
from tests.cli.live_node import master_with, produce
from tests.support.commands.in_process import hastore_here, run_command
from tests.support.commands.running import (
    WITHIN_S,
    command,
    environment,
    is_one_line_with_a_next_step,
    node,
)
from tests.support.waiting import wait_until

# All tests of this file share one node, so they run in one worker.
pytestmark = pytest.mark.xdist_group("consume")

NOW_MS = 1_795_248_742_549


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master with 20 messages in topic `orders`: 0 to 9 with tag a, 10 to 19 with tag b."""
    with master_with(tmp_path_factory.mktemp("consume") / "D1") as running:
        produce(running.address, "orders", range(10), "--tag", "a", "-k", "k")
        produce(running.address, "orders", range(10, 20), "--tag", "b")
        yield running


@pytest.fixture
def consume(master, capsysbinary):
    """A function that runs `consume` and returns its exit code, stdout and stderr."""
    return functools.partial(run_command, capsysbinary, "consume", "--addr", master.address)


BODIES = ("-F", r"%s\n")


def bodies(out):
    return [int(line) for line in out.splitlines()]


def test_consume_prints_messages_in_log_order(consume):
    """All queues are merged in the order in which their messages were stored."""
    code, out, err = consume("orders", "-e", *BODIES)
    assert (code, err) == (0, "")
    assert bodies(out) == list(range(20))


def test_consume_by_count_queue_and_tags(consume):
    """-n limits the count, -q reads one queue, --tag prints messages with one of the tags."""
    assert bodies(consume("orders", "-n", 7, *BODIES)[1]) == list(range(7))
    rows = [
        json.loads(line) for line in consume("orders", "-e", "-q", 3, "-o", "jsonl")[1].splitlines()
    ]
    assert {row["queue_id"] for row in rows} == {3}
    assert [row["queue_offset"] for row in rows] == list(range(len(rows)))
    assert bodies(consume("orders", "-e", "--tag", "b", *BODIES)[1]) == list(range(10, 20))
    assert bodies(consume("orders", "-e", "--tag", "a || b", *BODIES)[1]) == list(range(20))
    code, out, err = consume("orders", "-e", "--tag", "c")
    assert (code, out, err) == (0, "", "no message matches\n")


def test_consume_from_the_end_an_offset_or_a_time(consume):
    """A number is an offset in every queue; a time selects messages stored since then."""
    code, out, err = consume("orders", "-e", "--from", "end")
    assert (code, out, err) == (0, "", "orders has no messages from there on\n")
    later = bodies(consume("orders", "-e", "--from", 1, *BODIES)[1])
    assert len(later) == 12  # eight queues, each without its first message
    assert bodies(consume("orders", "-e", "--from", "@1h", *BODIES)[1]) == list(range(20))
    assert consume("orders", "-e", "--from", "@now")[1] == ""
    assert consume("orders", "-e", "--from", 10**12)[1] == ""


def test_group_resumes_after_the_last_printed_message(consume):
    """Printed messages are committed, whether -n or the end of the queues ended the run."""
    assert bodies(consume("orders", "-g", "billing", "-n", 5, *BODIES)[1]) == list(range(5))
    assert bodies(consume("orders", "-g", "billing", "-e", *BODIES)[1]) == list(range(5, 20))
    code, out, _ = consume("orders", "-g", "billing", "-e")
    assert (code, out) == (0, "")
    again = consume("orders", "-g", "billing", "--from", "beginning", "-n", 1, *BODIES)[1]
    assert bodies(again) == [0]


def test_group_commits_past_messages_that_its_tags_exclude(consume, master):
    """So the next run does not read them again."""
    assert bodies(consume("orders", "-g", "picky", "-e", "--tag", "a", *BODIES)[1]) == list(
        range(10)
    )
    described = hastore_here("group", "describe", "picky", "--addr", master.address, "-o", "json")
    assert json.loads(described.stdout)["lag"] == 0


def test_consume_prints_one_line_per_message_or_json(consume):
    """A line has place, time, size, key and tag; the JSON document names its schema."""
    line = consume("orders", "-n", 1)[1]
    assert "orders/" in line
    assert " @ 0  1 B  key k  tag a  0" in line
    document = json.loads(consume("orders", "-e", "-o", "json", "--no-bodies")[1])
    assert document["schema"] == "hastore.consume/1"
    assert len(document["messages"]) == 20
    assert "body" not in document["messages"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing"], 1, "topic nothing does not exist"),
        (["orders", "-q", 99], 2, "topic orders has no queue 99"),
        (["orders", "--from", "stored"], 2, "add -g GROUP"),
        (["orders", "--from", "middle"], 2, "'middle' is not beginning, end, stored"),
        (["orders", "-o", "json"], 2, "use -e, -n or"),
        (["or ders"], 2, "topic 'or ders' has ' '"),
        (["orders", "-F", "%y"], 2, "'%y' is not a field"),
        (["orders", "-g", "bad group"], 2, "group 'bad group': its retry topic is not valid"),
        (["orders", "-g", ""], 2, "a group has at least one character"),
    ],
)
def test_consume_errors_have_a_next_step(consume, arguments, code, message):
    """Usage errors and a missing topic are reported in one line with a hint."""
    found, out, err = consume(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert is_one_line_with_a_next_step(err)


def test_no_listener_exits_3(capsys, tmp_path):
    """Also for a directory on which no node runs."""
    assert main(["consume", "orders", "--addr", "127.0.0.1:1"]) == 3
    assert main(["consume", "orders", "--addr", str(tmp_path)]) == 3
    assert "hastore master --data" in capsys.readouterr().err


def test_new_messages_are_printed_at_once_and_ctrl_c_commits(tmp_path):
    """The process waits for messages; Ctrl-C ends it with exit code 130."""
    with master_with(tmp_path / "D1") as running:
        produce(running.address, "live", ["one"])
        arguments = command("consume", "live", "--addr", tmp_path / "D1", "-g", "g", *BODIES)
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            watchdog = threading.Timer(WITHIN_S, process.kill)
            watchdog.start()
            assert process.stdout.readline() == b"one\n"
            for body in (b"two\n", b"three\n"):
                produce(running.address, "live", [body.decode().strip()])
                assert process.stdout.readline() == body
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WITHIN_S)
            watchdog.cancel()
        assert (process.returncode, out, err) == (130, b"", b"")
        assert (
            hastore_here("consume", "live", "--addr", running.address, "-g", "g", "-e").stdout == ""
        )


def test_reader_is_a_group_member_and_commits_excluded_messages(tmp_path):
    """A reset is refused while it reads; afterwards the group's lag is 0."""
    with master_with(tmp_path / "D1") as running:
        produce(running.address, "live", ["a"], "--tag", "a")

        def describe():
            shown = hastore_here("group", "describe", "g", "--addr", running.address, "-o", "json")
            return json.loads(shown.stdout)

        arguments = command("consume", "live", "--addr", running.address, "-g", "g", "--tag", "a")
        with subprocess.Popen([*arguments, *BODIES], stdout=subprocess.PIPE) as process:
            watchdog = threading.Timer(WITHIN_S, process.kill)
            watchdog.start()
            assert process.stdout.readline() == b"a\n"
            produce(running.address, "live", ["b"] * 20, "--tag", "b")
            produce(running.address, "live", ["a"] * 8, "--tag", "a")  # one per queue
            assert [process.stdout.readline() for _ in range(8)] == [b"a\n"] * 8
            assert [member["language"] != "" for member in describe()["members"]] == [True]
            reset = ("group", "reset", "g", "--to", "beginning", "--yes")
            refused = hastore_here(*reset, "--addr", running.address)
            assert refused.returncode == 6
            assert "has connected members, which would undo it: 127.0.0.1:" in refused.stderr
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WITHIN_S)
            watchdog.cancel()
        assert process.returncode == 130
        shown = describe()
        assert (shown["members"], shown["lag"]) == ([], 0)


def test_consume_exits_3_when_the_node_stops(tmp_path):
    """The error is one line with a next step."""
    with master_with(tmp_path / "D1") as running:
        produce(running.address, "live", ["one"])
        arguments = command("consume", "live", "--addr", running.address, *BODIES)
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            watchdog = threading.Timer(WITHIN_S, process.kill)
            watchdog.start()
            assert process.stdout.readline() == b"one\n"
            running.stop()
            _, err = process.communicate(timeout=WITHIN_S)
            watchdog.cancel()
    assert process.returncode == 3
    assert is_one_line_with_a_next_step(err.decode())


def test_consume_from_a_slave(tmp_path):
    """The slave serves the same messages from its own files and port."""
    with (
        master_with(tmp_path / "D1") as running,
        node("slave", tmp_path / "D2", "--master", running.ha_address, "--name", "b") as slave,
    ):
        produce(running.address, "orders", range(5))

        def has_all():
            read = hastore_here("consume", "orders", "--addr", slave.address, "-e", *BODIES)
            return (read.returncode, read.stdout) == (0, "0\n1\n2\n3\n4\n")

        wait_until(has_all)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", ConsumeStart(StartKind.BEGINNING)),
        ("17", ConsumeStart(StartKind.OFFSET, 17)),
        ("@15min", ConsumeStart(StartKind.TIME, NOW_MS - 900_000)),
    ],
)
def test_start_is_a_word_an_offset_or_a_time(text, expected):
    """--from and --to accept these forms."""
    assert parse_start(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "@", "@soon", "-1", "first"])
def test_invalid_start_is_refused(text):
    """The error quotes the text and says what is valid."""
    with pytest.raises(ValueError, match="'"):
        parse_start(text, NOW_MS)

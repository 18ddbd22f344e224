"""`hastore produce` and `hastore status` on real nodes: output, counts, exit codes, signals."""

import json
import signal
import subprocess
import time

import pytest

from tests.support.commands.in_process import hastore_here, status_of, wait_for_status
from tests.support.commands.running import (
    WITHIN_S,
    command,
    environment,
    hastore,
    is_one_line_with_a_next_step,
    node,
)

# All tests of this file share one node, so they run in one worker.
pytestmark = pytest.mark.xdist_group("produce")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A SYNC_MASTER that never has a slave."""
    with node("master", tmp_path_factory.mktemp("alone") / "D") as master:
        yield master


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A SYNC_MASTER and its slave, in step."""
    base = tmp_path_factory.mktemp("pair")
    with (
        node("master", base / "D1") as master,
        node("slave", base / "D2", "--master", master.ha_address),
    ):
        wait_for_status(master.data, lambda status: status["slave_unavailable_because"] is None)
        yield master


def test_lines_carry_keys_and_properties_of_their_own(pair):
    """What ``consume -o jsonl`` prints can be sent again; a bad line ends the run, by number."""
    send = ("produce", "keyed", "--addr", pair.data, "-p", "a=b")
    lines = b"k1:one\nk2:t:wo\n:three\n"
    assert hastore_here(*send, "--key-separator", ":", stdin=lines).returncode == 0
    read = ("--addr", pair.data, "-e")
    shown = hastore_here("consume", "keyed", *read, "-F", r"%k|%s|%{a}\n").stdout.splitlines()
    assert sorted(shown) == ["k1|one|b", "k2|t:wo|b", "|three|b"]
    rows = hastore_here("consume", "keyed", *read, "-o", "jsonl").stdout.encode()
    done = hastore_here("produce", "copy", "--addr", pair.data, "--jsonl", stdin=rows)
    assert done.returncode == 0, done.stderr
    copied = hastore_here("consume", "copy", *read, "-F", r"%k|%s|%{a}\n").stdout.splitlines()
    assert sorted(copied) == sorted(shown)
    done = hastore_here(*send, "--key-separator", ":", "-o", "json", stdin=b"k:v\nbad\nk:v\n")
    assert done.returncode == 2
    assert json.loads(done.stdout)["sent"] == 1
    assert "stdin, line 2 is not a message" in done.stderr
    for flags in (("-n", "1", "--jsonl"), ("--jsonl", "--key-separator", ":"), ("-p", "a")):
        assert hastore_here(*send, *flags, stdin=b"x\n").returncode == 2


def test_the_node_counts_messages_and_batches(pair):
    """As many messages as were sent, however many requests they came in."""
    before = status_of(pair.data)
    done = hastore_here("produce", "counted", "--addr", pair.data, stdin=b"x\n" * 300)
    assert done.returncode == 0
    after = status_of(pair.data)
    messages, batches = (
        after[counts]["PUT_OK"] - before[counts]["PUT_OK"]
        for counts in ("put_counts", "put_batch_counts")
    )
    assert messages == 300
    assert 1 <= batches < 300
    shown = hastore_here("status", pair.data).stdout
    assert f"PUT_OK {after['put_counts']['PUT_OK']} (" in shown
    assert " batches)" in shown


def test_piped_input_is_never_ignored_silently(pair, tmp_path):
    """Generated messages and a FILE are sent, with a note: the input may be of a loop around it."""
    send = ("produce", "piped", "--addr", pair.data)
    done = hastore(*send, "-n", "3", stdin=b"hello\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)
    assert done.stderr.startswith("note: stdin has data, which is not sent")
    assert "name - to send the lines of stdin" in done.stderr
    file = tmp_path / "lines"
    file.write_text("one\n")
    done = hastore(*send, str(file), stdin=b"hello\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert done.stderr.startswith("note: stdin has data, which is not sent")


def test_a_size_that_no_message_can_have_is_refused_before_it_is_made(alone):
    """Terabytes, too: nothing is allocated, and no node is asked."""
    for size in ("15728641", "4GiB", "1TiB"):
        done = hastore_here("produce", "t", "-n", "1", "--size", size, "--addr", "127.0.0.1:1")
        assert (done.returncode, done.stdout) == (2, "")
        assert "a message has at most 15728640 bytes" in done.stderr


def test_replicated_message_is_put_ok(pair):
    """One line with status, topic/queue @ offset, id and latency; exit 0, no stderr."""
    done = hastore(
        "produce",
        "orders",
        "-k",
        "o-17",
        "--tag",
        "paid",
        "-q",
        "2",
        "--addr",
        pair.data,
        stdin=b"hi",
    )
    assert done.returncode == 0
    assert done.stderr == ""
    status, place, message_id, latency = done.stdout.strip().split("  ")
    assert status == "PUT_OK"
    assert place.startswith("orders/2 @ ")
    assert len(message_id) == len("id ") + 32
    assert latency.endswith(("ms", "µs"))


def test_message_without_a_slave_exits_20_with_a_next_step(alone):
    """The message is stored; stderr gives the reason and the command that starts a slave."""
    done = hastore("produce", "orders", "--addr", alone.address, stdin=b"hi\n")
    assert done.returncode == 20
    assert done.stdout.startswith("SLAVE_NOT_AVAILABLE  orders/")
    assert "stored on the master only" in done.stdout
    assert "  why   no slave is connected" in done.stderr
    assert f"  next  start one: hastore slave --master {alone.ha_address} --data DIR" in done.stderr


def test_message_without_a_groups_nodes_names_them(tmp_path):
    """No classic slave can help."""
    group = ("--ha-protocol", "autoswitch", "--node-id", "1", "--node-group", "g1")
    with node("master", tmp_path / "D", *group, "--group-ids", "1,2,3") as master:
        done = hastore_here("produce", "orders", "--addr", master.address, stdin=b"hi\n")
    assert done.returncode == 20
    assert "  why   nodes 2, 3 not connected" in done.stderr
    assert f"which nodes have a put: hastore explain {master.address}" in done.stderr


def test_lenient_and_no_wait_exit_0_without_a_slave(alone):
    """--lenient accepts a weaker outcome; --no-wait does not wait for a slave."""
    lenient = hastore_here("produce", "orders", "-n", "1", "--addr", alone.data, "--lenient")
    assert lenient.returncode == 0
    assert lenient.stdout.startswith("SLAVE_NOT_AVAILABLE")
    no_wait = hastore_here("produce", "orders", "-n", "1", "--addr", alone.data, "--no-wait")
    assert no_wait.returncode == 0
    assert no_wait.stdout.startswith("PUT_OK")


def test_up_to_20_messages_are_listed_and_more_are_counted(pair):
    """From 21 on, a table shows counts, rate and latencies."""
    few = hastore_here("produce", "t", "--addr", pair.data, stdin=b"x\n" * 20)
    assert len(few.stdout.splitlines()) == 20
    many = hastore_here("produce", "t", "--addr", pair.data, stdin=b"x\n" * 21)
    assert many.returncode == 0
    first, total = many.stdout.splitlines()
    assert first.split() == ["PUT_OK", "21", "100.0", "%"]
    assert total.split()[:2] == ["total", "21"]
    for fact in ("msg/s", "p50", "p99"):
        assert fact in total


def test_5000_messages_are_all_replicated(pair):
    """The slave has acknowledged the whole log when the command ends."""
    done = hastore_here("produce", "t", "-n", "5000", "--addr", pair.data, "-o", "json")
    result = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert result["counts"] == {"SEND_OK": 5_000}
    assert result["body_bytes"] == 5_000 * 1024
    assert result["messages"] == []
    status = status_of(pair.data)
    assert status["slaves"][0]["ack_offset"] == status["max_offset"]


def test_json_lists_a_few_messages(pair):
    """One document with stable keys and numeric offsets."""
    done = hastore_here("produce", "t", "--addr", pair.data, "-o", "json", stdin=b"a\nb\n")
    result = json.loads(done.stdout)
    assert result["schema"] == "hastore.produce/1"
    assert [message["status"] for message in result["messages"]] == ["SEND_OK"] * 2
    first, second = result["messages"]
    assert first["physic_offset"] < second["physic_offset"]
    assert int(first["message_id"][-16:], 16) == first["physic_offset"]
    assert result["exit_code"] == 0
    # The names of 0.1.0, for one more release.
    assert result["took_s"] == result["seconds"]
    assert result["latency_ms"]["p50"] == pytest.approx(1e3 * result["latency_s"]["p50"], abs=1e-2)
    assert first["latency_ms"] == pytest.approx(1e3 * first["latency_s"], abs=1e-2)


def test_topic_and_input_are_checked_before_sending(alone):
    """An invalid command stores nothing."""
    before = status_of(alone.data)["max_offset"]
    for arguments in (["or ders"], ["t", "no/such/file"], ["t", "-n", "x"]):
        done = hastore_here("produce", *arguments, "--addr", alone.data)
        assert done.returncode == 2
        assert is_one_line_with_a_next_step(done.stderr)
    assert status_of(alone.data)["max_offset"] == before


def test_too_large_body_is_rejected_and_the_others_are_stored(alone):
    """Exit 23 and MESSAGE_ILLEGAL, with the reason and a next step."""
    big = b"small\n" + b"x" * (5 << 20) + b"\nsmall\n"
    done = hastore_here("produce", "t", "--addr", alone.data, "--no-wait", stdin=big)
    assert done.returncode == 23
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "PUT_OK",
        "MESSAGE_ILLEGAL",
        "PUT_OK",
    ]
    assert "  why   " in done.stderr
    assert "message_max" in done.stderr


def test_line_too_large_for_any_broker_is_named_by_its_number(alone, tmp_path):
    """Earlier lines are sent and reported."""
    file = tmp_path / "lines"
    file.write_bytes(b"first\n" + b"x" * (16 << 20))
    done = hastore_here("produce", "t", file, "--addr", alone.data, "--no-wait")
    assert done.returncode == 2
    assert done.stdout.startswith("PUT_OK  t/")
    assert "line 2 is longer" in done.stderr


def test_no_listener_exits_3():
    """The error is one line with a next step."""
    done = hastore_here("produce", "t", "-n", "1", "--addr", "127.0.0.1:1")
    assert done.returncode == 3
    assert is_one_line_with_a_next_step(done.stderr)


def test_directory_without_a_node_exits_3(tmp_path):
    """The next step is the command that starts a node there."""
    done = hastore_here("produce", "t", "-n", "1", "--addr", tmp_path)
    assert done.returncode == 3
    assert f"hastore master --data {tmp_path}" in done.stderr


def test_produce_to_a_slave_exits_23(tmp_path):
    """A slave accepts no messages."""
    with node("slave", tmp_path / "S", "--master", "127.0.0.1:1") as slave:
        done = hastore_here("produce", "t", "-n", "1", "--addr", slave.data)
    assert done.returncode == 23
    assert "is a slave" in done.stderr
    assert is_one_line_with_a_next_step(done.stderr)


def test_empty_input_exits_0(alone):
    """A line on stderr says that nothing was sent."""
    done = hastore_here("produce", "t", "--addr", alone.data)
    assert done.returncode == 0
    assert "nothing was sent" in done.stderr


def test_rate_is_kept(alone):
    """300 messages at 1 000 a second take 0.3 s, or longer on a busy machine."""
    done = hastore_here(
        "produce", "t", "-n", "300", "--rate", "1000", "--addr", alone.data, "-o", "json"
    )
    assert 0.25 < json.loads(done.stdout)["seconds"] < 30


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_produce_with_128_plus_the_signal(alone, signum, code):
    """The input is still open when the signal arrives."""
    with subprocess.Popen(
        command("produce", "t", "--addr", alone.data, "--no-wait"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        # The outcome appears although stdin is open: produce does not wait for more input.
        assert process.stdout.readline().startswith(b"PUT_OK  t/")
        process.send_signal(signum)
        out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == code
    assert (out, err) == (b"", b"")  # the line above is the whole result of up to 20 messages


def test_killed_master_exits_3(tmp_path):
    """It is killed while a message is in flight, whose outcome stays unknown."""
    with (
        node("master", tmp_path / "D") as master,
        subprocess.Popen(
            command("produce", "t", "--addr", master.data, "--no-wait", "-o", "json"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process,
    ):
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_for_status(master.data, lambda status: status["put_counts"].get("PUT_OK"))
        master.process.send_signal(signal.SIGSTOP)
        process.stdin.write(b"two\n")
        process.stdin.flush()
        time.sleep(0.1)  # time to send the second line; the test also holds if it is not sent
        master.process.kill()
        out, err = process.communicate(timeout=WITHIN_S)
    result = json.loads(out)
    assert process.returncode == 3
    assert result["counts"]["SEND_OK"] == 1
    assert b"Traceback" not in err


def test_watched_status_repeats_until_a_signal(alone):
    """`status -w -o json` prints one line each time; Ctrl-C exits with 130."""
    with subprocess.Popen(
        command("status", alone.data, "-w", "0.05", "-o", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        statuses = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert err == b""
    assert statuses[0]["uptime_s"] < statuses[2]["uptime_s"]


def test_watch_flag_without_a_time_accepts_several_nodes(alone, tmp_path):
    """In `status -w D1 D2`, D1 is not a time and so the first node."""
    (tmp_path / "D2").mkdir()
    with subprocess.Popen(
        command("status", "-w", alone.data, tmp_path / "D2", "-o", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    ) as process:
        answer = json.loads(process.stdout.readline() or "{}")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert [each["role"] for each in answer["nodes"]] == ["SYNC_MASTER"]


def test_watched_status_continues_while_a_node_is_down(tmp_path):
    """A node that starts later is shown."""
    data = tmp_path / "D"
    data.mkdir()
    with subprocess.Popen(
        command("status", "-w", data, "-o", "json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert b"no node runs on" in process.stderr.readline()
        with node("master", data):
            assert json.loads(process.stdout.readline())["role"] == "SYNC_MASTER"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WITHIN_S)
    assert process.returncode == 143


def test_address_comes_from_the_environment(alone):
    """HASTORE_ADDR applies to `produce` and `status`; an argument overrides it."""
    assert hastore_here("status", HASTORE_ADDR=alone.address).returncode == 0
    assert hastore_here("produce", "t", "-n", "1", HASTORE_ADDR=alone.address).returncode == 20
    assert hastore_here("status", "127.0.0.1:1", HASTORE_ADDR=alone.address).returncode == 3

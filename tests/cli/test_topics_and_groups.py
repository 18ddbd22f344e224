"""``hastore topic`` and ``hastore group`` against a live node."""

import json
import os
import pty
import subprocess

import pytest
import trio

from hastore.client.admin import AdminClient
from tests.cli.live_node import master_with, produce
from tests.support.commands.in_process import hastore_here, run_command
from tests.support.commands.running import (
    WITHIN_S,
    command,
    environment,
    is_one_line_with_a_next_step,
)

# All tests of this file share one node, so they run in one worker.
pytestmark = pytest.mark.xdist_group("topics-and-groups")


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master whose topic `orders` has 20 messages; group `billing` has read 12 of them."""
    with master_with(tmp_path_factory.mktemp("topics") / "D1") as running:
        address = running.address
        produce(address, "orders", range(20))
        read = hastore_here("consume", "orders", "--addr", address, "-g", "billing", "-n", 12)
        assert read.returncode == 0, read.stderr
        yield running


@pytest.fixture
def run(master, capsysbinary):
    """A function that runs a command on the node and returns its exit code, stdout and stderr."""
    return lambda *arguments: run_command(capsysbinary, *arguments, "--addr", master.address)


def as_json(run, *arguments, code=0):
    found, out, err = run(*arguments, "-o", "json")
    assert found == code, err
    return json.loads(out)


# -- topics --------------------------------------------------------------------------------------


def test_topics_are_listed_with_their_messages(run):
    """Also with queues and permissions; -a adds the broker's own topics."""
    code, out, _ = run("topic", "list")
    assert code == 0
    assert out.splitlines()[0].split() == ["messages", "queues", "perm", "topic"]
    assert ["20", "8", "rw", "orders"] in [line.split() for line in out.splitlines()]
    shown = as_json(run, "topic", "list")
    assert shown["schema"] == "hastore.topics/1"
    (orders,) = [topic for topic in shown["topics"] if topic["topic"] == "orders"]
    assert (orders["messages"], orders["read_queues"], orders["system"]) == (20, 8, False)
    names = [topic["topic"] for topic in as_json(run, "topic", "list", "-a")["topics"]]
    assert set(names) >= {topic["topic"] for topic in shown["topics"]}


def test_topic_describe_shows_queues_and_groups(run):
    """Queues with their messages and first store time, groups with their lag."""
    code, out, _ = run("topic", "describe", "orders")
    assert code == 0
    assert "orders   8 queues   rw   20 messages" in out
    assert ["8", "billing"] in [line.split() for line in out.splitlines()]
    topic = as_json(run, "topic", "describe", "orders")
    assert (topic["schema"], len(topic["queues"])) == ("hastore.topic/1", 8)
    assert sum(queue["max_offset"] - queue["min_offset"] for queue in topic["queues"]) == 20
    assert all(queue["first_store_timestamp_ms"] > 0 for queue in topic["queues"])
    code, out, err = run("topic", "describe", "none")
    assert (code, out) == (1, "")
    assert "topic none does not exist" in err
    assert is_one_line_with_a_next_step(err)


def test_topic_create_needs_a_flag_to_change_a_topic(run):
    """Equal values succeed again; other values exit with 6 without --change."""
    assert run("topic", "create", "made", "--queues", 2)[:2] == (0, "created  made  2 queues  rw\n")
    assert run("topic", "create", "made", "--queues", 2)[1].startswith("exists already")
    code, out, err = run("topic", "create", "made", "--queues", 3)
    assert (code, out) == (6, "")
    assert is_one_line_with_a_next_step(err)
    code, out, _ = run("topic", "create", "made", "--queues", 3, "--perm", "r", "--change")
    assert (code, out) == (0, "changed  made  3 queues  r\n")
    made = as_json(run, "topic", "describe", "made")
    assert (made["read_queues"], made["permissions"], made["messages"]) == (3, "r-", 0)
    assert made["queues"][0]["first_store_timestamp_ms"] is None


def test_invalid_topic_name_is_refused(run):
    """It is a usage error."""
    code, _, err = run("topic", "create", "a b")
    assert code == 2
    assert is_one_line_with_a_next_step(err)


def test_topic_delete_needs_yes_or_a_terminal(run, master):
    """--dry-run exits with 10 and changes nothing; a topic that is gone is an error."""
    address = master.address
    produce(address, "gone", range(3))
    assert (
        hastore_here("consume", "gone", "--addr", address, "-g", "reader", "-n", 2).returncode == 0
    )
    code, out, err = run("topic", "delete", "gone", "--dry-run")
    assert (code, err) == (10, "nothing changed (--dry-run)\n")
    assert "gone   8 queues   rw   3 messages" in out
    assert "reader" in out
    refused = hastore_here("topic", "delete", "gone", "--addr", address)
    assert refused.returncode == 6
    assert is_one_line_with_a_next_step(refused.stderr)
    assert as_json(run, "topic", "describe", "gone")["messages"] == 3
    done = as_json(run, "topic", "delete", "gone", "--yes")
    assert done == {
        "schema": "hastore.topic-delete/1",
        "topic": "gone",
        "done": True,
        "messages": 3,
        "groups": ["reader"],
    }
    assert run("topic", "describe", "gone")[0] == 1
    code, _, err = run("topic", "delete", "gone", "--yes")
    assert code == 1
    assert is_one_line_with_a_next_step(err)
    code, _, err = run("topic", "delete", "TBW102", "--yes")
    assert code == 6
    assert is_one_line_with_a_next_step(err)


# -- groups --------------------------------------------------------------------------------------


def test_groups_are_listed_with_their_lag(run):
    """Also with topics and members; readers without a group are not listed."""
    run("consume", "orders", "-n", 1)
    code, out, _ = run("group", "list")
    assert code == 0
    assert ["8", "1", "0", "billing"] in [line.split() for line in out.splitlines()]
    assert "hastore-reader" not in out
    shown = as_json(run, "group", "list")
    assert shown["schema"] == "hastore.groups/1"
    (billing,) = [group for group in shown["groups"] if group["group"] == "billing"]
    assert billing == {"group": "billing", "lag": 8, "topics": ["orders"], "members": 0}


def test_group_describe_shows_each_queue(run):
    """Each with offset, maximum and lag; an unknown group is an error."""
    code, out, _ = run("group", "describe", "billing")
    assert code == 0
    assert "group  billing   0 members   lag 8" in out
    group = as_json(run, "group", "describe", "billing")
    assert (group["schema"], group["lag"], group["members"]) == ("hastore.group/1", 8, [])
    assert sum(queue["offset"] or 0 for queue in group["queues"]) == 12
    code, _, err = run("group", "describe", "none")
    assert code == 1
    assert "group none does not exist" in err
    assert is_one_line_with_a_next_step(err)


def test_a_commit_that_names_no_message_is_shown_as_what_it_is(run, master):
    """In a queue or a topic that does not exist, or beyond a queue's end; the node takes all."""

    async def commit():
        host, _, port = master.address.rpartition(":")
        async with AdminClient.connect((host, int(port))) as admin:
            await admin.update_offset("odd", "orders", 99, 1)
            await admin.update_offset("odd", "orders", 0, 1_000_000)
            await admin.update_offset("odd", "never", 0, 7)

    trio.run(commit)
    queues = as_json(run, "group", "describe", "odd")["queues"]
    faults = {(each["topic"], each["queue_id"]): each["fault"] for each in queues}
    assert {place: fault for place, fault in faults.items() if fault} == {
        ("orders", 99): "no-queue",
        ("orders", 0): "beyond-end",
        ("never", 0): "no-topic",
    }
    code, out, _ = run("group", "describe", "odd")
    assert code == 0
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 3
    assert "note: orders/99: no such queue; the topic has 8 queues" in notes
    assert "note: never/0: the node has no such topic" in notes
    (beyond,) = [note for note in notes if "orders/0" in note]
    # The command does not know which of the two the node is.
    assert "a master will skip the next" in beyond
    assert beyond.endswith("a slave may not have copied them yet")


def test_group_reset_needs_yes_or_a_terminal(run, master):
    """--dry-run exits with 10; without --yes and a terminal, it exits with 6."""
    address = master.address
    made = hastore_here("consume", "orders", "--addr", address, "-g", "back", "-e", "-F", "")
    assert made.returncode == 0
    code, out, err = run("group", "reset", "back", "--to", "beginning", "--dry-run")
    assert (code, err) == (10, "nothing changed (--dry-run)\n")
    assert out.count("again  orders") == 8
    refused = hastore_here("group", "reset", "back", "--to", "beginning", "--addr", address)
    assert refused.returncode == 6
    assert is_one_line_with_a_next_step(refused.stderr)
    assert as_json(run, "group", "describe", "back")["lag"] == 0
    done = as_json(run, "group", "reset", "back", "--to", "beginning", "--yes")
    assert (done["schema"], done["done"], len(done["queues"])) == ("hastore.group-reset/1", True, 8)
    assert as_json(run, "group", "describe", "back")["lag"] == 20
    code, _, err = run("group", "reset", "back", "--to", "beginning", "--yes")
    assert (code, err) == (0, "group back is there already: nothing to change\n")


def test_group_delete_removes_offsets_and_its_topics_if_asked(run, master):
    """--keep-offsets leaves the former, and without --with-topics the latter stay."""
    address = master.address
    made = hastore_here("consume", "orders", "--addr", address, "-g", "old", "-n", 2)
    assert made.returncode == 0, made.stderr
    produce(address, "%DLQ%old", range(1))
    code, out, err = run("group", "delete", "old", "--with-topics", "--dry-run")
    assert (code, err) == (10, "nothing changed (--dry-run)\n")
    assert "topic  %DLQ%old" in out
    refused = hastore_here("group", "delete", "old", "--addr", address)
    assert refused.returncode == 6
    assert is_one_line_with_a_next_step(refused.stderr)
    kept = as_json(run, "group", "delete", "old", "--keep-offsets", "--yes")
    assert (kept["schema"], kept["done"]) == ("hastore.group-delete/1", True)
    assert (kept["keeps_offsets"], kept["topics"]) == (True, [])
    assert sum(q["offset"] or 0 for q in as_json(run, "group", "describe", "old")["queues"]) == 2
    done = as_json(run, "group", "delete", "old", "--with-topics", "--yes")
    assert "%DLQ%old" in done["topics"]
    assert run("group", "describe", "old")[0] == 1
    assert run("topic", "describe", "%DLQ%old")[0] == 1


def test_group_reset_of_one_queue_to_an_offset_or_a_time(run, master):
    """Other queues stay as they are; an offset after the end means the end."""
    hastore_here("consume", "orders", "--addr", master.address, "-g", "one", "-e", "-F", "")
    run("group", "reset", "one", "--topic", "orders", "-q", 3, "--to", 1, "--yes")
    offsets = {q["queue_id"]: q for q in as_json(run, "group", "describe", "one")["queues"]}
    assert offsets[3]["offset"] == 1
    assert [offsets[i]["lag"] for i in range(8) if i != 3] == [0] * 7
    run("group", "reset", "one", "--to", "@1h", "--yes")
    assert as_json(run, "group", "describe", "one")["lag"] == 20
    run("group", "reset", "one", "--to", 10**9, "--yes")
    assert as_json(run, "group", "describe", "one")["lag"] == 0


def test_group_reset_sets_the_start_of_a_new_group(run):
    """Needed after a failover, because a slave has no groups."""
    arguments = ["group", "reset", "moved", "--topic", "orders", "--to", 1, "--yes"]
    code, _, err = run(*arguments, "--dry-run")
    assert code == 10
    assert "group moved has read nothing there yet" in err
    assert run("group", "describe", "moved")[0] == 1
    done = as_json(run, *arguments)
    assert {queue["offset"] for queue in done["queues"]} == {None}
    queues = as_json(run, "group", "describe", "moved")["queues"]
    assert {queue["offset"] for queue in queues} == {1}
    code, _, err = run("group", "reset", "no name", "--topic", "orders", "--to", 1, "--yes")
    assert (code, is_one_line_with_a_next_step(err)) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["billing", "--to", "stored"], 2, "is the group's current offset"),
        (["billing", "--to", "end", "-q", 99], 2, "has no queue 99"),
        (["billing", "--to", "end", "--topic", "none"], 1, "topic none does not exist"),
        (["nobody", "--to", "end"], 1, "group nobody does not exist"),
    ],
)
def test_impossible_group_reset_is_refused(run, arguments, code, message):
    """Nothing is printed on stdout, and the error gives the reason."""
    found, out, err = run("group", "reset", *arguments, "--yes")
    assert (found, out) == (code, "")
    assert message in err
    assert is_one_line_with_a_next_step(err)


def test_group_reset_asks_on_a_terminal(master):
    """The answer n changes nothing and exits with 6."""
    address = master.address
    hastore_here("consume", "orders", "--addr", address, "-g", "asked", "-e", "-F", "")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("group", "reset", "asked", "--to", "beginning", "--addr", address),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        os.close(theirs)
        os.write(ours, b"n\n")
        _, err = process.communicate(timeout=WITHIN_S)
        os.close(ours)
    assert process.returncode == 6
    assert b"change the offsets of group asked in 8 queues?" in err
    described = hastore_here("group", "describe", "asked", "--addr", address, "-o", "json")
    assert json.loads(described.stdout)["lag"] == 0

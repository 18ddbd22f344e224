"""`hastore produce` and `hastore consume` with several addresses, through a failover."""

import contextlib
import json
import subprocess

import pytest

from hastore.errors import UnreachableError
from hastore_cli.node.address import names_in, resolve_addresses
from tests.patience import PROCESS_WITHIN_S
from tests.support.commands.running import command, environment, hastore
from tests.support.waiting import wait_until


@contextlib.contextmanager
def started(*arguments, stdout=subprocess.PIPE):
    """Run a command while the block runs."""
    with subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_both_commands_survive_a_killed_master(hastore_group_processes, tmp_path):
    """Each says once who is master now; all messages are stored, and read, in the end."""
    cluster = hastore_group_processes(nodes=3)
    a, b, c = cluster.nodes
    assert a.put("orders", b"first").ok
    addresses = ",".join(node.endpoint for node in (c, b, a))
    lines = tmp_path / "lines"
    with (
        lines.open("wb") as output,
        started(
            "consume", "orders", "--addr", addresses, "-n", 401, "-o", "jsonl", stdout=output
        ) as consumer,
        started(
            "produce", "orders", "-n", 400, "--rate", 100, "--size", 20, "--addr", addresses,
            "--at-least-once", "-o", "json",
        ) as producer,
    ):  # fmt: skip
        wait_until(lambda: lines.read_bytes().count(b"\n") > 50)
        a.kill()
        b.promote()
        sent, said = producer.communicate(timeout=PROCESS_WITHIN_S)
        _, noted = consumer.communicate(timeout=PROCESS_WITHIN_S)
    assert f"master is now {b.name} at {b.endpoint}" in said
    report = json.loads(sent)
    counts = report["counts"]
    # What comes before the third node has connected to its new master is stored there alone.
    assert counts.keys() <= {"SEND_OK", "SLAVE_NOT_AVAILABLE"}
    assert sum(counts.values()) == 400
    assert producer.returncode == (20 if "SLAVE_NOT_AVAILABLE" in counts else 0), said
    assert report["address"] == b.endpoint
    (failover,) = report["failovers"]
    assert (failover["master"], failover["address"]) == (b.name, b.endpoint)
    assert consumer.returncode == 0, noted
    # A slave may have had the rest before there was a master.
    assert "going on at the slave c at" in noted or f"master is now b at {b.endpoint}" in noted
    bodies = [json.loads(line)["body"] for line in lines.read_text().splitlines()]
    stored = {message.body.decode() for message in b.consume("orders")}
    assert len(stored) >= 401
    assert len(bodies) == 401
    assert set(bodies) <= stored


def test_without_a_new_master_the_command_ends(hastore_group_processes):
    """After the failover time-out, with exit code 3 and a next step."""
    cluster = hastore_group_processes(nodes=2)
    a, b = cluster.nodes
    addresses = f"{a.endpoint},{b.endpoint}"
    arguments = ("--addr", addresses, "--failover-timeout", "500ms")
    with started("produce", "orders", "-n", 100_000, "--rate", 100, *arguments) as producer:
        wait_until(lambda: a.consume("orders"))
        a.kill()
        sent, said = producer.communicate(timeout=PROCESS_WITHIN_S)
    assert producer.returncode == 3, (sent, said)
    assert "no master found within 0.5 s" in said
    assert "  next  " in said


async def test_several_names_of_nodes(tmp_path):
    """Directories without a node are left out, as long as one name is left."""
    (tmp_path / "D,1").mkdir()
    assert names_in(str(tmp_path / "D,1")) == [str(tmp_path / "D,1")]
    assert await resolve_addresses("h:1, h:2,h:1") == [("h", 1), ("h", 2)]
    empty = tmp_path / "D"
    empty.mkdir()
    assert await resolve_addresses(f"{empty},h:1") == [("h", 1)]
    with pytest.raises(UnreachableError):
        await resolve_addresses(f"{empty},{empty}")


def test_nobody_answers():
    """One line that names what was seen."""
    done = hastore(
        "produce", "orders", "-n", "1", "--addr", "127.0.0.1:1,127.0.0.1:2",
    )  # fmt: skip
    assert done.returncode == 3
    assert "no master found within 5 s: cannot connect to 127.0.0.1:1" in done.stderr

"""A directory as an address: only the node that has it open counts, not who listens at its port."""

import json
import signal

import pytest

from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import node

ASYNC = ("--broker-role", "ASYNC_MASTER")
# Each command that takes a directory where a node's address may be.
ASKING = (
    ("status", "{0}"),
    ("explain", "{0}"),
    ("produce", "t", "-n", "1", "--size", "10", "--addr", "{0}"),
    ("consume", "t", "-e", "--addr", "{0}"),
    ("topic", "list", "--addr", "{0}"),
    ("group", "list", "--addr", "{0}"),
)


@pytest.fixture(scope="module")
def killed_and_other(tmp_path_factory):
    """The directory of a killed node, and one of the node that took its port."""
    place = tmp_path_factory.mktemp("stale")
    with node("master", place / "killed", *ASYNC) as killed:
        address = killed.info["address"]
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    with node("master", place / "other", *ASYNC, "--listen", address) as other:
        yield place / "killed", other.data


@pytest.mark.parametrize("command", ASKING, ids=lambda command: command[0])
def test_commands_refuse_the_directory_of_a_killed_node(killed_and_other, command):
    """They did ask the node that listens at its port now, and stored messages there."""
    killed, other = killed_and_other
    done = hastore_here(*(word.format(killed) for word in command))
    assert done.returncode == 3
    assert "no process holds its lock file" in done.stderr
    topics = hastore_here("topic", "list", "--addr", other, "-o", "json")
    assert topics.returncode == 0
    assert "t" not in topics.stdout.split()


def test_check_wait_and_doctor_say_that_it_is_down(killed_and_other):
    """``check`` knows that, so it is CRITICAL and not UNKNOWN."""
    killed, _ = killed_and_other
    done = hastore_here("check", killed)
    assert (done.returncode, done.stdout.split()[0]) == (2, "CRITICAL")
    assert hastore_here("wait", killed, "--healthy", "--timeout", "0s").returncode == 3
    done = hastore_here("doctor", killed, "-o", "json")
    found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["client port"]["result"] == "bad"
    assert found["last stop"]["result"] == "warn"


def test_a_directory_that_another_node_has_open_is_not_asked(killed_and_other, tmp_path):
    """A node that starts holds its lock while the file is still the former start's."""
    killed, other = killed_and_other
    file = json.loads((killed / "node.json").read_bytes())
    with node("master", tmp_path / "starting", *ASYNC) as starting:
        (starting.data / "node.json").write_text(json.dumps(file))
        done = hastore_here("status", starting.data)
        assert done.returncode == 3
        assert f"is not that of {starting.data}" in done.stderr
        assert str(other) in done.stderr
        assert "is starting, or could not write node.json" in done.stderr

"""`hastore up`: a replica group in the foreground, with an etcd and without."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import attrs
import pytest

from hastore.testing.etcd_binary import etcd_binary
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import WITHIN_S, command, environment, hastore
from tests.support.waiting import wait_until


@attrs.define(eq=False)
class Up:
    """A running `hastore up`, and what it says of itself."""

    process: subprocess.Popen[bytes]
    log: Path
    info: dict

    @property
    def addresses(self):
        """All client ports, as `produce` takes them."""
        return ",".join(node["address"] for node in self.info["nodes"])

    def node(self, node_id):
        """Return a node."""
        return next(node for node in self.info["nodes"] if node["id"] == node_id)

    def wait_for_text(self, text):
        """Wait until it has said something on stderr."""
        wait_until(lambda: text in self.log.read_text(), self.log.read_text)

    def stop(self, signum):
        """Send a signal; return the exit code once nothing of the group runs any more."""
        self.process.send_signal(signum)
        code = self.process.wait(WITHIN_S)
        for node in self.info["nodes"]:
            with pytest.raises(ProcessLookupError):
                os.kill(node["pid"], 0)
        return code


@contextlib.contextmanager
def running_up(tmp_path, *arguments):
    """Run `hastore up` while the block runs, from when its group is ready."""
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command("up", "-o", "json", *arguments),
            stdout=subprocess.PIPE,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment(TMPDIR=str(tmp_path)),
            cwd=tmp_path,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Up(process, log, json.loads(line))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def send(addresses):
    """Send a message; return the outcome's line."""
    sent = hastore_here("produce", "orders", "--addr", addresses, stdin=b"hello\n")
    assert sent.returncode == 0, sent.stderr
    return sent.stdout


def consumed(addresses):
    """Return the bodies that can be read; none while no node answers."""
    return hastore_here(
        "consume", "orders", "-e", "--addr", addresses, "-F", "%s\\n"
    ).stdout.split()


def test_a_group_with_etcd_survives_its_master_and_leaves_nothing_behind(tmp_path):
    """Kill the master: another one takes over, and the message is there."""
    if etcd_binary() is None:
        pytest.skip("no etcd on PATH, nor from the extra cluster")
    with running_up(tmp_path) as up:
        assert (up.info["epoch"], len(up.info["nodes"])) == (1, 3)
        assert "PUT_OK" in send(up.addresses)
        started = Path(up.info["directory"], "etcd.log").read_text()
        assert '"auto-compaction-retention":"1h0m0s"' in started
        first = up.node(up.info["master"])
        os.kill(first["pid"], signal.SIGKILL)
        up.wait_for_text("is master of epoch 2")
        assert f"n{first['id']} has ended, killed by SIGKILL" in up.log.read_text()
        assert "PUT_OK" in send(up.addresses)
        shown = hastore_here("cluster", "status", "--etcd", up.info["etcd"], "-o", "json")
        assert json.loads(shown.stdout)["epoch"] == 2, shown.stderr
        wait_until(lambda: consumed(up.addresses) == ["hello", "hello"])
        assert up.stop(signal.SIGINT) == 130
        assert not Path(up.info["directory"]).exists()


def test_a_group_without_etcd_is_kept_and_goes_on(tmp_path):
    """Its failover is up to a person; the next `up` with its directory has its messages."""
    keep = tmp_path / "demo"
    with running_up(tmp_path, "--no-etcd", "--keep", keep) as up:
        assert (up.info["etcd"], up.info["epoch"]) == (None, 2)
        assert [n["name"] for n in up.info["nodes"]] == ["n1", "n2", "n3"]
        shown = hastore_here("status", "-o", "json", up.node(2)["address"])
        assert json.loads(shown.stdout)["name"] == "n2", shown.stderr
        assert "PUT_OK" in send(up.addresses)
        first = up.node(up.info["master"])
        os.kill(first["pid"], signal.SIGKILL)
        up.wait_for_text("killed by SIGKILL")
        nodes = [n["address"] for n in up.info["nodes"] if n is not first]
        flags = [word for address in nodes for word in ("--node", address)]
        done = hastore_here("cluster", "failover", *flags, "--ids", "1,2,3")
        assert done.returncode == 0, done.stderr
        assert "is master of epoch 4" in done.stdout
        assert up.stop(signal.SIGTERM) == 0
    with running_up(tmp_path, "--no-etcd", "--keep", keep) as up:
        assert up.info["epoch"] == 6
        wait_until(lambda: consumed(up.addresses) == ["hello"])
        assert up.stop(signal.SIGTERM) == 0
    other = hastore_here("up", "--nodes", "2", "--keep", keep)
    assert (other.returncode, "has a group of 3 nodes" in other.stderr) == (2, True)


def test_a_directory_with_something_else_is_refused(tmp_path):
    """Nothing in it is changed."""
    (tmp_path / "mine").write_text("x")
    done = hastore_here("up", "--keep", tmp_path)
    assert (done.returncode, "something else than a group" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_group_that_does_not_start_says_why(tmp_path):
    """The first line of the node that ended; the others are ended, too."""
    keep = tmp_path / "demo"
    keep.mkdir()
    for number in (1, 2, 3):
        (keep / f"n{number}.toml").write_text("")
    (keep / "n2").write_text("a file where the directory should be")
    done = hastore("up", "--no-etcd", "--keep", keep)
    assert done.returncode == 1
    assert "n2 did not start: exit code" in done.stderr

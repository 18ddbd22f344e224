"""A node of a group with an etcd is ready once etcd knows its directory, never if it refuses it."""

import json

import pytest

from tests.support.commands.running import ANY_PORT, hastore, node

GROUP = ("--node-id", "1", "--node-group", "g1", "--group-ids", "1", "--ttl", "3s")


def events_of(text):
    """The names of the events in a log."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [json.loads(line)["event"] for line in lines]


def test_a_directory_that_is_refused_is_never_ready(etcd, tmp_path):
    """Another one has its id: exit code 6, and no line that calls it ready."""
    flags = (*GROUP, "--etcd", *etcd.endpoints)
    with node("node", tmp_path / "A", *flags) as first:
        assert "ready" in events_of(first.wait_for_text('"ready"'))
        assert first.stop() == 0
    ports = ("--listen", ANY_PORT, "--ha-listen", ANY_PORT, "--mapped-file-size", "4MiB")
    done = hastore("node", "--data", tmp_path / "B", *flags, *ports)
    assert done.returncode == 6, done.stderr
    assert "is another directory than the one" in done.stderr
    assert "ready" not in events_of(done.stderr)


@pytest.mark.parametrize("etcd_url", ["http://127.0.0.1:1"])
def test_a_node_whose_etcd_does_not_answer_is_ready_for_consumers(tmp_path, etcd_url):
    """It waits for its role as a slave; a stop ends it."""
    with node("node", tmp_path / "A", *GROUP, "--etcd", etcd_url) as waiting:
        assert "ready" in events_of(waiting.wait_for_text('"ready"'))
        assert waiting.stop() == 0

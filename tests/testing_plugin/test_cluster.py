"""The fixtures of ``hastore.testing``, used as in another project's tests."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import attrs
import pytest

import hastore
from hastore.errors import ConfigError, UnreachableError
from hastore.status import BrokerRole, FlushDiskType
from hastore.status import PutMessageStatus as S
from hastore.testing import process_runner
from hastore.testing.cluster import Cluster
from hastore.testing.free_port import FreePort
from hastore.testing.group_member import has_caught_up
from hastore.testing.loop_thread import LoopClosedError
from hastore.testing.node_settings import NodeStart
from hastore.testing.runner import NodeDiedError
from tests.support.repository import REPO_ROOT


@pytest.fixture(params=["tasks", "processes"])
def any_cluster(request):
    """Return a cluster of each kind; both must behave alike."""
    name = {"tasks": "hastore_cluster", "processes": "hastore_processes"}[request.param]
    return request.getfixturevalue(name)


def bodies(messages) -> list[bytes]:
    """Return the bodies of messages."""
    return [message.body for message in messages]


def test_a_message_is_put_and_consumed(hastore_master):
    """It has its properties, and the offset that the put returned."""
    result = hastore_master.put("orders", b"hello", properties={"KEYS": "o-17"})
    assert result.status is S.PUT_OK
    (message,) = hastore_master.consume("orders")
    assert (message.body, message.properties["KEYS"]) == (b"hello", "o-17")
    assert message.physic_offset == result.physic_offset
    assert hastore_master.consume("nothing") == []


def test_messages_are_consumed_in_log_order(hastore_master):
    """This holds across queues; consume() waits for a given number of messages."""
    sent = [b"%d" % number for number in range(100)]
    results = hastore_master.put_many([hastore.Message("t", body) for body in sent])
    assert all(result.ok for result in results)
    assert bodies(hastore_master.consume("t")) == sent
    assert sorted(bodies(hastore_master.consume("t", 100))) == sorted(sent)
    with pytest.raises(TimeoutError, match=r"a: 100 of 101 messages of t within 1 s"):
        hastore_master.consume("t", 101, within_s=1)
    with pytest.raises(TimeoutError, match="0 of 1 messages of never"):
        hastore_master.consume("never", 1, within_s=0.1)


def test_a_group_continues_after_its_last_message(hastore_master):
    """Messages that the group has consumed are not returned again."""
    hastore_master.put("t", b"one")
    assert bodies(hastore_master.consume("t", group="g")) == [b"one"]
    hastore_master.put("t", b"two")
    assert bodies(hastore_master.consume("t", 1, group="g")) == [b"two"]
    assert hastore_master.consume("t", group="g") == []


def test_a_promoted_slave_has_all_acknowledged_messages(any_cluster):
    """The master is killed, the slave is promoted, and the old master follows it."""
    cluster = any_cluster(slaves=1)
    former, slave = cluster.master, cluster.slaves[0]
    assert former.put("orders", b"hello").status is S.PUT_OK
    assert bodies(slave.consume("orders", 1)) == [b"hello"]
    former.kill()
    assert not former.is_running
    assert (former.data / "abort").exists()

    assert slave.promote() is slave
    assert cluster.master is slave
    assert (slave.role, slave.master) == (BrokerRole.SYNC_MASTER, None)
    assert bodies(slave.consume("orders")) == [b"hello"]
    assert slave.put("orders", b"alone").status is S.SLAVE_NOT_AVAILABLE

    former.follow(slave)
    cluster.wait_caught_up()
    assert slave.put("orders", b"two").status is S.PUT_OK
    former.wait_caught_up()
    assert bodies(former.consume("orders")) == [b"hello", b"alone", b"two"]
    assert former.status().role == "SLAVE"


def test_a_node_restarts_on_the_same_ports(any_cluster):
    """This holds after a stop and after a kill, and the slave reconnects by itself."""
    cluster = any_cluster(slaves=1, flush="SYNC_FLUSH")
    master = cluster.master
    addresses = master.address, master.ha_address, master.endpoint
    master.put("t", b"1")
    master.restart()
    cluster.wait_caught_up()
    assert master.put("t", b"2").ok
    master.kill()
    with pytest.raises(UnreachableError):
        master.put("t", b"nobody")
    with pytest.raises(NodeDiedError, match="a does not run"):
        master.status()
    master.restart()
    cluster.wait_caught_up()
    assert master.put("t", b"3").ok
    assert (master.address, master.ha_address, master.endpoint) == addresses
    assert bodies(master.consume("t")) == [b"1", b"2", b"3"]


def test_a_cluster_has_the_requested_nodes_and_settings(hastore_cluster):
    """Two clusters in one test are separate."""
    cluster = hastore_cluster(
        slaves=2, role="ASYNC_MASTER", flush="SYNC_FLUSH", slave_flush="ASYNC_FLUSH",
        mapped_file_size=65_536,
    )  # fmt: skip
    status = cluster.master.status()
    assert (status.role, status.flush_disk_type) == ("ASYNC_MASTER", "SYNC_FLUSH")
    assert status.mapped_file_size == 65_536
    assert len(status.slaves) == 2
    assert [node.name for node in cluster.nodes] == ["a", "b", "c"]
    assert {node.status().flush_disk_type for node in cluster.slaves} == {"ASYNC_FLUSH"}
    third = cluster.add_slave()
    assert third.status().flush_disk_type == "SYNC_FLUSH"
    assert len(cluster.slaves) == 3

    other = hastore_cluster(slaves=0)
    other.master.put("t", b"here")
    assert cluster.master.consume("t") == []
    assert other.master.data != cluster.master.data


def test_a_slave_process_can_be_frozen(hastore_processes):
    """A put times out after SIGSTOP, and is PUT_OK again after SIGCONT."""
    cluster = hastore_processes(slaves=1, slave_timeout_ms=200)
    (slave,) = cluster.slaves
    slave.pause()
    assert cluster.master.put("t", b"1").status is S.FLUSH_SLAVE_TIMEOUT
    slave.resume()
    cluster.wait_caught_up()
    assert cluster.master.put("t", b"2").ok
    assert bodies(slave.consume("t", 2)) == [b"1", b"2"]
    slave.pause()  # the fixture ends a frozen node, too


def test_tasks_cannot_be_frozen(hastore_master):
    """The error names the fixture whose nodes can be."""
    with pytest.raises(NotImplementedError, match="hastore_processes"):
        hastore_master.pause()


def test_a_misspelt_choice_lists_the_valid_ones(hastore_cluster, tmp_path):
    """This holds for all arguments with roles and flush types; no node is started or stopped."""
    roles = "role 'SYNC' is not one of ASYNC_MASTER, SYNC_MASTER, SLAVE"
    with pytest.raises(ConfigError, match=roles) as caught:
        hastore_cluster(role="SYNC")
    assert "hastore.status.BrokerRole" in caught.value.hint
    for name in ("flush", "slave_flush"):
        with pytest.raises(ConfigError, match=f"{name} 'SYNC' is not one of .*ASYNC_FLUSH"):
            hastore_cluster(**{name: "SYNC"})
    with Cluster(tmp_path / "c") as cluster:
        cluster.start(slaves=0, role="ASYNC_MASTER")
        with pytest.raises(ConfigError, match=roles):
            cluster.master.promote("SYNC")
        assert cluster.master.is_running
        with pytest.raises(ConfigError, match="flush 'x' is not one of"):
            cluster.add_slave(flush="x")


def test_a_text_body_is_a_type_error(hastore_master):
    """put() and put_many() raise it before anything is sent."""
    with pytest.raises(TypeError, match=r"a body is bytes, not str: body\.encode\(\)"):
        hastore_master.put("t", "text")
    with pytest.raises(TypeError, match="a body is bytes, not int"):
        hastore_master.put_many([hastore.Message("t", b"fine"), hastore.Message("t", 7)])
    assert hastore_master.consume("t") == []


def test_invalid_settings_are_refused(hastore_cluster, hastore_processes, tmp_path):
    """Unknown settings, impossible values and an unusable directory are errors."""
    with pytest.raises(ConfigError, match="no_such is not a field"):
        hastore_cluster(no_such=1)
    with pytest.raises(ConfigError, match="slaves -1 must not be negative"):
        hastore_cluster(slaves=-1)
    with pytest.raises(ConfigError, match="mapped_file_size"):
        hastore_cluster(slaves=0, mapped_file_size=1)
    with pytest.raises(ConfigError, match="mapped_file_size"):
        hastore_processes(slaves=0, mapped_file_size=1)
    (tmp_path / "hastore-processes-2").mkdir()
    (tmp_path / "hastore-processes-2" / "a").write_text("a file where a directory should be")
    with pytest.raises(NodeDiedError, match=r"it did not start \(exit 1\): (?s:.*)hastore-proc"):
        hastore_processes(slaves=0)
    with pytest.raises(ConfigError, match="PAIR_MASTER"):
        hastore_cluster(role="PAIR_MASTER")


def test_a_process_that_does_not_start_in_time_is_an_error_of_the_node(
    hastore_processes, monkeypatch
):
    """The process is ended, and the error shows its output."""
    monkeypatch.setattr(process_runner, "START_WITHIN_S", 0)
    with pytest.raises(NodeDiedError, match="it did not start within 0 s: it has logged nothing"):
        hastore_processes(slaves=0)


def test_a_failed_wait_reports_the_last_status(hastore_cluster):
    """A condition that never holds raises TimeoutError; a killed node raises NodeDiedError."""
    cluster = hastore_cluster()
    with pytest.raises(TimeoutError, match=r"a: not within 1 s: a miracle; last seen: SYNC_MAS"):
        cluster.master.wait_until(lambda _: False, "a miracle", within_s=1)
    cluster.slaves[0].kill()
    with pytest.raises(NodeDiedError, match="b does not run"):
        cluster.slaves[0].wait_caught_up()


def test_the_clusters_master_is_the_last_promoted_one(tmp_path):
    """A running master precedes a stopped one. The cluster's directory may be a text."""
    with Cluster(str(tmp_path / "nodes")) as cluster:
        cluster.start(slaves=2, role="ASYNC_MASTER")
        a, b, c = cluster.nodes
        assert cluster.master is a
        c.promote()
        assert cluster.master is c
        b.promote()
        assert cluster.master is b
        b.stop()
        assert cluster.master is c


def test_a_diverged_slave_is_not_waited_for(hastore_cluster):
    """The error comes at once, with the reason."""
    cluster = hastore_cluster(slaves=1, role="ASYNC_MASTER")
    former, slave = cluster.master, cluster.slaves[0]
    slave.stop()
    former.put_many([hastore.Message("t", b"former") for _ in range(20)])
    former.stop()
    slave.promote().put("t", b"its own way")
    former.follow(slave)
    with pytest.raises(NodeDiedError, match="a will not follow: diverged"):
        former.wait_caught_up()


def test_only_a_compared_log_has_caught_up(hastore_cluster):
    """A longer log may stream from its master before it was compared."""
    node = hastore_cluster(slaves=1).slaves[0]
    node.wait_caught_up()
    status = node.status()
    link = status.master_link

    def slave(reported_offset, state="streaming", behind=0):
        changed = attrs.evolve(link, state=state, reported_offset=reported_offset)
        return attrs.evolve(
            status, max_offset=3_000, dispatch_behind_bytes=behind, master_link=changed
        )

    assert has_caught_up(slave(165), 165)
    assert not has_caught_up(slave(3), 165)  # the comparison begins here
    assert not has_caught_up(slave(None), 165)
    assert not has_caught_up(slave(165, state="backing-off"), 165)
    assert not has_caught_up(slave(165, behind=1), 165)
    assert not has_caught_up(slave(3_001), 3_001)
    assert not has_caught_up(attrs.evolve(status, master_link=None), 0)


def test_a_node_that_died_by_itself_is_reported_at_close(tmp_path):
    """The test did not end the node, so closing the cluster raises its exit code."""
    cluster = Cluster(tmp_path / "c", processes=True)
    node = cluster.start(slaves=0).master
    process_id = node.status().process_id
    os.kill(process_id, signal.SIGKILL)
    with pytest.raises((NodeDiedError, UnreachableError)):
        node.wait_until(lambda _: False, within_s=10)
    with pytest.raises(NodeDiedError, match="a ended by itself: exit -9"):
        cluster.close()


def test_closing_a_cluster_leaves_nothing(tmp_path):
    """No thread, process or port remains, and a closed cluster raises LoopClosedError."""
    with Cluster(tmp_path / "tasks") as tasks, Cluster(tmp_path / "p", processes=True) as processes:
        for cluster in (tasks, processes):
            cluster.start(slaves=1)
        node = processes.slaves[0]
        node.pause()
        process_id = processes.master.status().process_id
        addresses = [cluster.master.address for cluster in (tasks, processes)]
    assert not any(thread.name == "hastore-testing" for thread in threading.enumerate())
    assert not Path(f"/proc/{process_id}").exists()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError), socket.socket() as sock:
            sock.connect(address)
    tasks.close()
    with pytest.raises(LoopClosedError, match="closed"):
        node.status()


def test_a_cluster_whose_loop_cannot_start_says_why():
    """It raises at once, here without a free descriptor, and leaves no thread."""
    program = """
import resource, threading
from hastore.testing.cluster import Cluster
from hastore.testing.loop_thread import LoopNotStartedError
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
try:
    Cluster("unused")
except LoopNotStartedError as error:
    assert isinstance(error.__cause__, OSError)
    print(error, error.hint, threading.active_count(), sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True
    )
    reason, hint, threads = done.stdout.strip().split("|")
    assert reason.endswith("cannot start: [Errno 24] Too many open files")
    assert "ulimit -n" in hint
    assert (threads, done.stderr) == ("1", "")


async def test_an_async_test_may_use_the_fixtures(hastore_master):
    """The cluster's loop is in another thread; a call only blocks the test's loop."""
    assert hastore_master.put("t", b"x").ok


def test_a_reserved_port_is_not_given_to_another_socket():
    """The kernel does not assign it, but a node that names it may listen on it."""
    port = FreePort()
    others = []
    try:
        for _ in range(200):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            others.append(sock)
        assert port.number not in {sock.getsockname()[1] for sock in others}
        with socket.socket() as node:
            node.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            node.bind(("127.0.0.1", port.number))
            node.listen()
    finally:
        port.release()
        for sock in others:
            sock.close()


def test_node_settings_survive_json():
    """A node's process gets its settings as JSON."""
    settings = NodeStart(
        name="b",
        data_dir="/d",
        role=BrokerRole.SLAVE,
        flush=FlushDiskType.SYNC_FLUSH,
        port=1,
        ha_port=2,
        master_ha_port=3,
        config={"ha_new_slave_from": hastore.SlaveStart.LAST_FILE, "slave_timeout_ms": 5},
    )
    again = NodeStart.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings
    assert again.node_config().ha.ha_new_slave_from is hastore.SlaveStart.LAST_FILE
    in_group = attrs.evolve(settings, role=BrokerRole.SYNC_MASTER, node_id=2, client_ports=(7, 1))
    again = NodeStart.from_dict(json.loads(json.dumps(in_group.to_dict())))
    assert again == in_group
    assert again.node_config().group_ids == (1, 2)


def examples() -> dict[str, object]:
    """Return the tests that the document shows."""
    text = (REPO_ROOT / "docs" / "testing-with-hastore.md").read_text()
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, found)
    return {name: value for name, value in found.items() if name.startswith("test_")}


@pytest.mark.parametrize("name", examples())
def test_the_documents_examples_pass(name, request):
    """The examples in docs/testing-with-hastore.md are run unchanged."""
    example = examples()[name]
    wanted = inspect.signature(example).parameters
    example(**{fixture: request.getfixturevalue(fixture) for fixture in wanted})

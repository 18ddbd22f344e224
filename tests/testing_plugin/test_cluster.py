"""The fixtures of ``hastore.testing`` as a test suite of somebody else uses them."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import socket
import threading
from pathlib import Path

import attrs
import pytest

import hastore
from hastore.errors import ConfigError, UnreachableError
from hastore.status import BrokerRole, FlushDiskType
from hastore.status import PutMessageStatus as S
from hastore.testing.cluster import Cluster
from hastore.testing.free_port import FreePort
from hastore.testing.loop_thread import LoopClosedError
from hastore.testing.node import has_caught_up
from hastore.testing.node_settings import NodeStart
from hastore.testing.runner import NodeDiedError

REPO_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["tasks", "processes"])
def any_cluster(request):
    """Both kinds of clusters: whatever holds for one holds for the other."""
    name = {"tasks": "hastore_cluster", "processes": "hastore_processes"}[request.param]
    return request.getfixturevalue(name)


def bodies(messages) -> list[bytes]:
    """What messages say."""
    return [message.body for message in messages]


def test_a_message_comes_back(hastore_master):
    """Put, then consume: the message with its properties, at the offset that was answered."""
    result = hastore_master.put("orders", b"hello", properties={"KEYS": "o-17"})
    assert result.status is S.PUT_OK
    (message,) = hastore_master.consume("orders")
    assert (message.body, message.properties["KEYS"]) == (b"hello", "o-17")
    assert message.physic_offset == result.physic_offset
    assert hastore_master.consume("nothing") == []


def test_messages_come_in_the_order_of_the_log(hastore_master):
    """Over all queues, a batch in flight or one at a time; a count is waited for."""
    sent = [b"%d" % number for number in range(100)]
    results = hastore_master.put_many([hastore.Message("t", body) for body in sent])
    assert all(result.ok for result in results)
    assert bodies(hastore_master.consume("t")) == sent
    assert sorted(bodies(hastore_master.consume("t", 100))) == sorted(sent)
    with pytest.raises(TimeoutError, match=r"a: 100 of 101 messages of t within 3 s"):
        hastore_master.consume("t", 101, within_s=3)
    with pytest.raises(TimeoutError, match="0 of 1 messages of never"):
        hastore_master.consume("never", 1, within_s=0.1)


def test_a_group_goes_on_where_it_was(hastore_master):
    """What was consumed in the name of a group does not come again."""
    hastore_master.put("t", b"one")
    assert bodies(hastore_master.consume("t", group="g")) == [b"one"]
    hastore_master.put("t", b"two")
    assert bodies(hastore_master.consume("t", 1, group="g")) == [b"two"]
    assert hastore_master.consume("t", group="g") == []


def test_a_promoted_slave_has_what_was_acknowledged(any_cluster):
    """Kill the master, promote the slave, let the old one follow: the story of every suite."""
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


def test_a_node_restarts_where_its_peers_look(any_cluster):
    """Ports stay the same after a stop and after a kill, and the slave comes back by itself."""
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


def test_a_cluster_is_what_was_asked_for(hastore_cluster):
    """Number of slaves, role, flush types and settings; two clusters of a test are apart."""
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


def test_a_frozen_slave_is_a_process(hastore_processes):
    """SIGSTOP: the put times out; SIGCONT: it is PUT_OK again."""
    cluster = hastore_processes(slaves=1, slave_timeout_ms=200)
    (slave,) = cluster.slaves
    slave.pause()
    assert cluster.master.put("t", b"1").status is S.FLUSH_SLAVE_TIMEOUT
    slave.resume()
    cluster.wait_caught_up()
    assert cluster.master.put("t", b"2").ok
    assert bodies(slave.consume("t", 2)) == [b"1", b"2"]
    slave.pause()  # the fixture ends it all the same


def test_tasks_cannot_be_frozen(hastore_master):
    """They say what can."""
    with pytest.raises(NotImplementedError, match="hastore_processes"):
        hastore_master.pause()


def test_a_misspelt_choice_names_those_there_are(hastore_cluster, tmp_path):
    """For roles and flush types wherever they are given; nothing was begun for it."""
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


def test_a_body_that_is_text_is_named(hastore_master):
    """One and many, before anything was sent: not an error from inside the encoder."""
    with pytest.raises(TypeError, match=r"a body is bytes, not str: body\.encode\(\)"):
        hastore_master.put("t", "text")
    with pytest.raises(TypeError, match="a body is bytes, not int"):
        hastore_master.put_many([hastore.Message("t", b"fine"), hastore.Message("t", 7)])
    assert hastore_master.consume("t") == []


def test_what_cannot_be_is_refused(hastore_cluster, hastore_processes, tmp_path):
    """A setting that there is not, or a value that cannot be: an error, and nothing is left."""
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


def test_waiting_says_what_was_seen(hastore_cluster):
    """A condition that never holds is a TimeoutError with the node's state."""
    cluster = hastore_cluster()
    with pytest.raises(TimeoutError, match=r"a: not within 2 s: a miracle; last seen: SYNC_MAS"):
        cluster.master.wait_until(lambda _: False, "a miracle", within_s=2)
    cluster.slaves[0].kill()
    with pytest.raises(NodeDiedError, match="b does not run"):
        cluster.slaves[0].wait_caught_up()


def test_of_several_masters_it_is_the_one_promoted_last(tmp_path):
    """A running one before one that is down; the directory may be a text."""
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


def test_a_slave_that_will_never_follow_is_not_waited_for(hastore_cluster):
    """Logs that have parted: the reason comes at once."""
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
    """A longer log, streaming from its master, of which nothing was compared: not yet."""
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


def test_a_node_that_dies_by_itself_is_not_passed_over(tmp_path):
    """What nobody did to it is raised when the cluster is closed, with what it said last."""
    cluster = Cluster(tmp_path / "c", processes=True)
    node = cluster.start(slaves=0).master
    process_id = node.status().process_id
    os.kill(process_id, signal.SIGKILL)
    with pytest.raises((NodeDiedError, UnreachableError)):
        node.wait_until(lambda _: False, within_s=10)
    with pytest.raises(NodeDiedError, match="a ended by itself: exit -9"):
        cluster.close()


def test_nothing_is_left(tmp_path):
    """After the block: no thread, no process, no port; a closed cluster says so."""
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


async def test_an_asynchronous_test_may_use_it_too(hastore_master):
    """The cluster's loop is in another thread: this one only stands still."""
    assert hastore_master.put("t", b"x").ok


def test_a_reserved_port_is_given_to_nobody_else():
    """The kernel does not hand it out again, and who asks for it by number may listen on it."""
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


def test_settings_travel_as_json():
    """What a process is started with is what it reads."""
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


def examples() -> dict[str, object]:
    """The tests that the document shows."""
    text = (REPO_ROOT / "docs" / "testing-with-hastore.md").read_text()
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, found)
    return {name: value for name, value in found.items() if name.startswith("test_")}


@pytest.mark.parametrize("name", examples())
def test_the_documents_examples_pass(name, request):
    """Each example of docs/testing-with-hastore.md is a test that is green as it stands."""
    example = examples()[name]
    wanted = inspect.signature(example).parameters
    example(**{fixture: request.getfixturevalue(fixture) for fixture in wanted})

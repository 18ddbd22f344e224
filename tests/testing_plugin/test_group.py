"""The fixtures of ``hastore.testing`` for replica groups, used as in another project's tests."""

from __future__ import annotations

import shutil

import pytest

import hastore
from hastore.env.real import real_env
from hastore.errors import ConfigError, HastoreError
from hastore.status import BrokerRole
from hastore.status import PutMessageStatus as S
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import read_identity
from hastore.testing.group import NotInSetError
from hastore.testing.runner import NodeDiedError
from tests.support.waiting import wait_until

# Slow nodes stay in the set, and their acks are waited for.
PATIENT = {
    "slave_timeout_ms": 60_000,
    "sync_state_timeout_ms": 600_000,
    "ha_housekeeping_interval_ms": 60_000,
}


@pytest.fixture(params=["tasks", "processes"])
def any_group(request):
    """Return a group of each kind; both must behave alike."""
    name = {"tasks": "hastore_group", "processes": "hastore_group_processes"}[request.param]
    return request.getfixturevalue(name)


def bodies(messages) -> list[bytes]:
    """Return the bodies of messages."""
    return [message.body for message in messages]


def epochs(node) -> list[int]:
    """Return the epochs of a node's log."""
    file = EpochFile(real_env().disk, f"{node.data}/{EPOCH_FILE}")
    return [entry.epoch for entry in file.load().entries]


def wait_for_set(cluster, *nodes) -> None:
    """Wait until the SyncStateSet has these nodes."""
    wait_until(lambda: cluster.in_sync == list(nodes), lambda: f"{cluster.in_sync}")


def log_of(node) -> bytes:
    """Return the bytes of a node's only log file."""
    (file,) = (node.data / "commitlog").iterdir()
    return file.read_bytes()


def test_a_group_survives_its_master(any_group):
    """The master is killed, a slave is promoted, the old master cuts and follows: equal logs."""
    cluster = any_group(nodes=3, **PATIENT)
    a, b, c = cluster.nodes
    assert cluster.master is a
    assert a.put("orders", b"one").status is S.PUT_OK
    b.kill()
    wait_for_set(cluster, a, c)
    c.kill()
    # No majority would remain without c: stored, never acknowledged, and on this node only.
    assert a.put("orders", b"tail").status is S.SLAVE_NOT_AVAILABLE
    a.kill()
    b.restart()
    c.restart()

    assert c.promote() is c
    assert (cluster.master, cluster.slaves) == (c, [a, b])
    assert (c.role, c.master, a.master, b.master) == (BrokerRole.SYNC_MASTER, None, c, c)
    assert c.put("orders", b"two").status is S.PUT_OK

    a.restart()
    cluster.wait_caught_up()
    assert a.status().last_cut["messages"] == {"orders": 1}
    assert c.put("orders", b"three").status is S.PUT_OK
    cluster.wait_caught_up()
    for node in cluster.nodes:
        assert bodies(node.consume("orders")) == [b"one", b"two", b"three"]
        assert epochs(node) == [1, 2]
    assert len({log_of(node) for node in cluster.nodes}) == 1


def test_a_living_master_hands_over(any_group):
    """It steps down first, and follows the new one; a restart of a master begins an epoch, too."""
    cluster = any_group(nodes=3, **PATIENT)
    a, b, _ = cluster.nodes
    assert a.put("t", b"1").ok
    b.promote()
    assert b.put("t", b"2").ok
    with pytest.raises(HastoreError, match="a slave"):
        a.put("t", b"refused")
    b.restart()
    assert cluster.master is b
    assert b.put("t", b"3").ok
    cluster.wait_caught_up()
    assert epochs(a) == epochs(b) == [1, 2, 3]
    assert bodies(a.consume("t")) == [b"1", b"2", b"3"]


def test_the_next_epoch_is_above_all_that_any_node_has_seen(hastore_group):
    """A node that is stopped counts, too."""
    cluster = hastore_group(nodes=3, **PATIENT)
    a, _, c = cluster.nodes
    c.promote()
    c.put("t", b"1")
    c.kill()
    assert read_identity(real_env().disk, str(c.data)).seen_epoch == 2
    a.promote()
    assert a.put("t", b"2").ok
    assert epochs(a)[-1] == 3


def test_a_node_outside_the_set_is_not_promoted(hastore_group):
    """The error names what would be lost; ``force`` loses it, where directories are removed."""
    cluster = hastore_group(nodes=3, **PATIENT)
    a, b, c = cluster.nodes
    assert a.put("orders", b"old").ok
    c.stop()
    wait_for_set(cluster, a, b)
    results = a.put_many([hastore.Message("orders", b"%d" % number) for number in range(5)])
    assert all(result.ok for result in results)
    assert a.put("paid", b"x").ok
    a.kill()
    c.restart()
    with pytest.raises(NotInSetError) as caught:
        c.promote()
    assert str(caught.value).startswith("c is not in the SyncStateSet of epoch 1 (a, b): its log")
    assert "would be lost (orders: 5, paid: 1)" in str(caught.value)
    assert caught.value.hint == "promote a or b, or promote(force=True) and lose that"
    assert cluster.master is a  # nothing has changed
    with pytest.raises(NotInSetError, match="c is not in the SyncStateSet"):
        b.promote(members=[b, c])

    c.promote(force=True)
    assert cluster.master is c
    assert c.put("orders", b"new").ok
    a.restart()
    with pytest.raises(NodeDiedError, match="will not follow: failed, alarm: the log in"):
        cluster.wait_caught_up()
    for node in (a, b):
        node.stop()
        shutil.rmtree(node.data)
        node.restart()
    cluster.wait_caught_up()
    assert [bodies(node.consume("orders")) for node in cluster.nodes] == [[b"old", b"new"]] * 3


def test_members_choose_the_first_set(hastore_group):
    """The others join it once they have the log; a node of another group is no member."""
    cluster = hastore_group(nodes=3, **PATIENT)
    b = cluster.nodes[1]
    b.promote(members=[b])
    assert b.put("t", b"1").ok
    cluster.wait_caught_up()
    other = hastore_group(nodes=1).master
    with pytest.raises(ConfigError, match="a is not a node of this group"):
        b.promote(members=[b, other])
    assert other.put("t", b"alone").ok


def test_a_demoted_master_leaves_the_group_without_one(any_group):
    """Puts are refused until a node is promoted."""
    cluster = any_group(nodes=2, **PATIENT)
    a, b = cluster.nodes
    assert a.put("t", b"1").ok
    a.demote()
    with pytest.raises(HastoreError, match="no node of this cluster is a master"):
        _ = cluster.master
    with pytest.raises(HastoreError, match="the group has no master"):
        cluster.wait_caught_up()
    assert a.status().state == "unassigned"
    a.promote()
    assert a.put("t", b"2").ok
    b.demote()  # a slave follows the master, as it did
    cluster.wait_caught_up()
    assert bodies(b.consume("t")) == [b"1", b"2"]
    assert b.follow(a) is b
    with pytest.raises(ConfigError, match="b is not another node that is the group's master"):
        a.follow(b)


def test_a_frozen_master_cannot_acknowledge(hastore_group_processes):
    """It wakes up as the master of an epoch that is over, and is told later."""
    cluster = hastore_group_processes(nodes=3, **PATIENT)
    a, b, _ = cluster.nodes
    assert a.put("t", b"1").ok
    a.pause()
    b.promote()
    assert b.put("t", b"2").ok
    a.resume(rejoin=False)
    assert a.status().role == "SYNC_MASTER"
    assert not a.put("t", b"lost").ok
    a.demote()
    cluster.wait_caught_up()
    assert b.put("t", b"3").ok
    a.pause()
    a.resume()
    cluster.wait_caught_up()
    assert bodies(a.consume("t")) == [b"1", b"2", b"3"]


def test_a_frozen_slave_follows_the_new_master_once_it_goes_on(hastore_group_processes):
    """Also a master that does not answer yet: it is found once that goes on."""
    cluster = hastore_group_processes(nodes=3, **PATIENT)
    a, b, c = cluster.nodes
    c.pause()
    with pytest.raises(HastoreError, match="c is frozen"):
        c.promote()
    a.kill()
    b.promote()
    assert b.put("t", b"1").ok
    b.pause()
    c.resume()
    assert c.status().state == "unassigned"
    b.resume()
    a.restart()
    cluster.wait_caught_up()
    assert [bodies(node.consume("t")) for node in cluster.nodes] == [[b"1"]] * 3


def test_a_group_follows_its_settings(hastore_group):
    """With fewer members than the least, puts are refused before they are written."""
    cluster = hastore_group(nodes=2, role="SYNC_MASTER", min_in_sync_replicas=2, **PATIENT)
    a, b = cluster.nodes
    b.promote(members=[b])
    cluster.wait_caught_up()
    a.kill()
    b.promote()
    end = b.status().max_offset
    assert not b.put("t", b"refused").status.stored
    assert b.status().max_offset == end


def test_what_a_group_does_not_do_is_an_error(hastore_group, hastore_cluster):
    """Each names what to do instead."""
    with pytest.raises(ConfigError, match="a replica group has nodes, not 0"):
        hastore_group(nodes=0)
    with pytest.raises(ConfigError, match="role is that of the masters, not SLAVE"):
        hastore_group(role="SLAVE")
    with pytest.raises(ConfigError, match="no_such is not a field"):
        hastore_group(no_such=1)
    cluster = hastore_group(nodes=1, role="ASYNC_MASTER")
    assert cluster.master.status().role == "ASYNC_MASTER"
    with pytest.raises(ConfigError, match="a replica group keeps the nodes"):
        cluster.add_slave()
    with pytest.raises(ConfigError, match="one role as masters"):
        cluster.master.promote("SYNC_MASTER")
    assert cluster.in_sync == cluster.nodes
    cluster.master.kill()
    with pytest.raises(NodeDiedError, match="a does not run"):
        cluster.master.demote().status()
    pair = hastore_cluster(slaves=0)
    classic = pair.master
    assert pair.in_sync == []
    with pytest.raises(ConfigError, match="a is in no replica group"):
        classic.demote()
    with pytest.raises(ConfigError, match="members and force are for"):
        classic.promote(force=True)

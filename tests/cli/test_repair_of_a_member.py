"""`hastore log repair` of a replica group's member, with a real etcd: it is not elected before its
log has been compared with a master's, and another member can always be elected.
"""

import contextlib

import pytest
import trio

import hastore
from hastore.broker.node.master import Master
from hastore.env.real import RealDisk
from hastore.status import PutMessageStatus as Status
from hastore.store.node_identity import read_identity
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from tests.support.commands.in_process import call, call_json
from tests.support.nodes.elected_nodes import follow_its_master, status_once
from tests.support.nodes.group_nodes import node_config
from tests.support.nodes.harness import FILE_SIZE, log_bytes, messages
from tests.support.waiting import eventually

IDS = (1, 2, 3)
LOST = 5


@contextlib.asynccontextmanager
async def running(etcd, tmp_path, *ids):
    """Run some of the nodes; yield them by id."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = {}
        for node_id in ids:
            config = node_config(tmp_path / f"D{node_id}", node_id, IDS, coordinator=etcd)
            nodes[node_id] = await stack.enter_async_context(hastore.open_node(config))
        yield nodes


def master_in(nodes):
    return next((n for n in nodes.values() if isinstance(n.role_node, Master)), None)


async def has_master(nodes, members):
    """Wait for a master with these nodes in its set, as etcd has it."""
    await eventually(lambda: master_in(nodes) is not None, "a master")
    await status_once(lambda status: status["sync_state_set"] == sorted(members))
    return master_in(nodes)


async def filled(etcd, tmp_path, count=20):
    """Let a group store messages; return the directory of a node that was a slave at the end."""
    async with running(etcd, tmp_path, *IDS) as nodes:
        await has_master(nodes, IDS)
        for message in messages(count):
            while await put_once(nodes, message) is not Status.PUT_OK:
                await trio.sleep(0.05)  # a busy node may miss its lease
        await eventually(
            lambda: (
                len({node.max_offset for node in nodes.values()}) == 1
                and not any(node.role_node.reput_message_service.behind for node in nodes.values())
                and master_in(nodes) is not None
            ),
            "all dispatched",
        )
        slave_id = next(at for at in IDS if nodes[at] is not master_in(nodes))
    return slave_id, tmp_path / f"D{slave_id}"


async def put_once(nodes, message):
    """Put a message to the master that there is; return its status, None without one."""
    master = master_in(nodes)
    return None if master is None else (await master.role_node.put(message)).status


def flip(directory, place=LOST):
    """Change a byte of a message; return it."""
    log = find_log(RealDisk(), str(directory))
    records = [at for at, check in LogWalker(RealDisk(), log).walk() if is_message(check)]
    offset = records[place] + 100
    path = directory / "commitlog" / f"{offset - offset % FILE_SIZE:020d}"
    with path.open("r+b") as file:
        file.seek(offset % FILE_SIZE)
        byte = file.read(1)[0]
        file.seek(offset % FILE_SIZE)
        file.write(bytes([byte ^ 1]))
    return records[place]


def is_message(check):
    return check.kind is RecordKind.MESSAGE


def unverified(directory):
    return read_identity(RealDisk(), str(directory)).unverified


async def test_a_repaired_member_is_compared_before_it_may_be_elected(etcd, tmp_path):
    """Alone it is no master; as a slave it gets its message back, and all logs are equal."""
    slave_id, directory = await filled(etcd, tmp_path)
    begin = flip(directory)
    code, report = await call_json("log", "repair", directory, "--accept-loss")
    assert (code, report["unverified"]["begin"]) == (0, begin)
    assert unverified(directory).begin == begin
    async with running(etcd, tmp_path, slave_id) as nodes:
        status = await status_once(lambda status: [n for n in status["nodes"] if n["is_up"]])
        row = next(node for node in status["nodes"] if node["id"] == slave_id)
        assert "has to compare its log with a master's first" in row["why_not"]
        assert not row["may_stand"]
        told = (await call("cluster", "failover", "--to", slave_id, "--dry-run"))[2]
        assert "may lack acknowledged messages" in told
        assert "log repair filled" in told
        assert master_in(nodes) is None
    async with running(etcd, tmp_path, *IDS) as nodes:
        node = nodes[slave_id]
        await eventually(lambda: node.identity.current.unverified is None, "verified")
        await has_master(nodes, IDS)
        await status_once(follow_its_master)  # it may become master now
    logs = [log_bytes(tmp_path / f"D{at}") for at in IDS]
    assert logs[0] == logs[1] == logs[2]


async def test_a_member_is_repaired_with_loss_while_another_may_be_elected(etcd, tmp_path):
    """The coordinator says so; the node gets its message back, and joins the set."""
    slave_id, directory = await filled(etcd, tmp_path)
    others = [at for at in IDS if at != slave_id]
    flip(directory)
    async with running(etcd, tmp_path, *others) as nodes:
        await eventually(lambda: master_in(nodes) is not None, "a master")
        await status_once(lambda status: status["leader"] is not None)
        code, report = await call_json("log", "repair", directory, "--yes")
        assert (code, report["unverified"] is not None) == (0, True)
        assert sum(each["count"] for each in report["lost_messages"]) == 1
        async with running(etcd, tmp_path, slave_id) as repaired:
            node = repaired[slave_id]
            await eventually(lambda: node.identity.current.unverified is None, "verified")
            await has_master(nodes, IDS)
    assert unverified(directory) is None


async def test_a_repair_that_leaves_nobody_to_be_elected_is_refused(etcd, tmp_path, monkeypatch):
    """Nothing is changed; --accept-loss goes on, and names the message that is lost."""
    _, directory = await filled(etcd, tmp_path)
    flip(directory)
    before = log_bytes(directory)
    code, shown, told = await call("log", "repair", directory, "--yes")
    assert code == 6, told
    assert "no other node may be elected, and none is up" in told
    assert "--accept-loss" in told
    assert "lost " in shown
    code, _, told = await call("log", "repair", directory, "--yes", "--etcd", "http://127.0.0.1:9")
    assert code == 3, told
    monkeypatch.delenv("HASTORE_CLUSTER_ETCD")
    code, _, told = await call("log", "repair", directory, "--yes")
    assert code == 6, told
    assert "only its coordinator says whether another node may be elected" in told
    assert log_bytes(directory) == before
    assert unverified(directory) is None
    code, report = await call_json("log", "repair", directory, "--accept-loss")
    assert code == 0
    lost = report["lost_messages"]
    assert [(each["topic"], each["count"]) for each in lost] == [("orders", 1)]
    assert lost[0]["first"] == lost[0]["last"]
    assert unverified(directory) is not None


async def test_a_member_is_repaired_from_its_running_master(etcd, tmp_path):
    """Over the HA port of the group: nothing is lost, so it may be elected at once."""
    slave_id, directory = await filled(etcd, tmp_path)
    others = [at for at in IDS if at != slave_id]
    flip(directory)
    async with running(etcd, tmp_path, *others) as nodes:
        await eventually(lambda: master_in(nodes) is not None, "a master")
        host, port = master_in(nodes).ha_address
        arguments = ("log", "repair", directory, "--from-replica", f"{host}:{port}")
        code, report = await call_json(*arguments)
        assert (code, report["unverified"], report["lost_messages"]) == (0, None, [])
        assert [part["action"] for part in report["parts"]] == ["replace"]
    assert unverified(directory) is None
    ends = [len(log_bytes(tmp_path / f"D{at}").rstrip(b"\0")) for at in IDS]
    assert log_bytes(directory)[: min(ends)] == log_bytes(tmp_path / f"D{others[0]}")[: min(ends)]


@pytest.mark.parametrize("name", ["D9"])
async def test_a_directory_of_another_group_is_no_replica(etcd, tmp_path, name):
    """Its log may have the same offsets."""
    _, directory = await filled(etcd, tmp_path, 5)
    flip(directory, 2)
    async with hastore.open_node(node_config(tmp_path / name, 1, (1,), replica_group="g2")):
        pass
    code, _, told = await call("log", "repair", directory, "--from-replica", tmp_path / name)
    assert (code, "node 1 of replica group g2" in told) == (6, True), told

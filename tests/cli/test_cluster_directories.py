"""`hastore cluster reinit` and `adopt`: directories of nodes that do not run, and a real etcd."""

import attrs
import pytest

import hastore
from hastore.cluster.etcd_client import EtcdClient
from hastore.env.real import RealDisk
from hastore.errors import CoordinatorRefusedError
from hastore.store.node_identity import read_identity
from hastore_cli.cluster import directories
from tests.support.commands.in_process import call, call_json, master_on
from tests.support.commands.in_process import put as put_many
from tests.support.nodes.elected_nodes import follow_its_master, has_all, nodes_by, status_once
from tests.support.nodes.group_nodes import node_config, put
from tests.support.waiting import eventually

ADOPT = ("cluster", "adopt")


def names(directory):
    """Return what a directory holds, relative to it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


# -- reinit --------------------------------------------------------------------------------------


async def test_a_node_begins_again_and_its_old_directory_is_kept(etcd, tmp_path):
    """It leaves the set, copies the master's log, and comes back; the old one is all there."""
    third = tmp_path / "D3"
    async with nodes_by(etcd, tmp_path, 2, ids=(1, 2, 3)) as nodes:
        config = node_config(third, 3, coordinator=etcd)
        async with hastore.open_node(config) as three:
            first = (await has_all(nodes))["leader"]["id"]
            if first == 3:
                assert (await call("cluster", "switchover", "--to", "1"))[0] == 0
                await status_once(follow_its_master)
            master = next(n.role_node for n in nodes if n.role_node.role.value != "SLAVE")
            await put(master)
            await eventually(lambda: three.max_offset == master.max_offset)
            code, _, told = await call("cluster", "reinit", third)
            assert (code, f"{third}/lock" in told) == (6, True)
        before = names(third)
        await status_once(lambda shown: not shown["nodes"][2]["is_up"])
        code, shown = await call_json("cluster", "reinit", third, "--dry-run")
        assert (code, shown["node"], shown["done"], names(third)) == (10, 3, False, before)
        code, shown = await call_json("cluster", "reinit", third)
        assert (code, shown["done"]) == (0, True)
        (kept,) = tmp_path.glob("D3.before-*")
        assert (str(kept), names(kept), names(third)) == (shown["kept"], before, [])
        assert third.stat().st_mode == kept.stat().st_mode
        assert (await call_json("cluster", "status"))[1]["sync_state_set"] == [1, 2]
        async with hastore.open_node(config) as three:
            await status_once(lambda shown: shown["sync_state_set"] == [1, 2, 3])
            assert three.max_offset == master.max_offset
        code, _, told = await call("cluster", "reinit", kept)
        assert (code, "node 3 has another directory now" in told) == (6, True)


async def test_what_may_not_begin_again_is_refused_and_stays(etcd, tmp_path):
    """The master, a node of another group, no node's directory, one that cannot be moved."""
    async with nodes_by(etcd, tmp_path, 1, ids=(1,)) as nodes:
        await eventually(lambda: nodes[0].role_node.role.value != "SLAVE")
    alone = tmp_path / "D1"
    before = names(alone)
    async with nodes_by(etcd, tmp_path, 2, ids=(1, 2)):
        pass
    link = tmp_path / "link"
    link.symlink_to(alone)
    (tmp_path / "file").write_text("x")
    for arguments, code, said in (
        ((alone,), 6, "no node is master now"),
        ((alone, "--group", "g2"), 2, "not to group g2"),
        ((tmp_path / "none",), 6, "no such directory"),
        ((tmp_path / "file",), 6, "is a file"),
        ((tmp_path / "etcd",), 6, "belongs to no node of a replica group"),
        ((link,), 6, "is a symbolic link"),
    ):
        found, shown, told = await call("cluster", "reinit", *arguments)
        assert (found, shown, said in told, "next" in told) == (code, "", True, True), told
    assert names(alone) == before
    assert not list(tmp_path.glob("*.before-*"))


def test_a_directory_that_cannot_be_moved_says_what_to_do(tmp_path):
    """Its node has left the set already; the directory is as it was."""
    (tmp_path / "D").mkdir()
    (tmp_path / "kept").mkdir()
    with pytest.raises(hastore.errors.DiskError, match=r"cannot keep .* File exists") as caught:
        directories.set_aside(tmp_path / "D", tmp_path / "kept")
    assert "move the directory yourself" in caught.value.hint
    assert (tmp_path / "D").is_dir()


# -- adopt ---------------------------------------------------------------------------------------


async def classic_log(directory, count=5):
    """Write a classic master's log; return its end."""
    async with master_on(directory) as master:
        await put_many(master, count)
        return master.max_offset


def group_node(directory, node_id, etcd):
    """Return the configuration of a node with the files of a classic master."""
    config = node_config(directory, node_id, (1, 2), coordinator=etcd)
    store = attrs.evolve(config.store, mapped_file_size=None)
    return attrs.evolve(config, store=store)


async def test_a_classic_log_becomes_a_group_that_goes_on(etcd, tmp_path):
    """Its messages are epoch 1; a node with an empty directory copies them, and counts."""
    one = tmp_path / "a"
    end = await classic_log(one)
    flags = (*ADOPT, one, "--node-id", 1, "--group", "g1")
    before = names(one)
    code, shown = await call_json(*flags, "--dry-run")
    assert (code, shown["what"]) == (
        10,
        "the group begins with the log of node 1, from 0 on: epoch 1",
    )
    assert names(one) == before
    code, shown = await call_json(*flags)
    assert (code, shown["node"], shown["begin"], shown["done"]) == (0, 1, 0, True)
    identity = read_identity(RealDisk(), str(one))
    assert (identity.node_id, identity.group, identity.seen_epoch) == (1, "g1", 1)
    async with (
        hastore.open_node(group_node(one, 1, etcd)) as first,
        hastore.open_node(group_node(tmp_path / "b", 2, etcd)) as second,
    ):
        status = await status_once(lambda s: s["sync_state_set"] == [1, 2] and s["leader"])
        assert (status["leader"]["id"], status["epoch"]) == (1, 2)
        assert (await put(first.role_node)).name == "PUT_OK"
        await eventually(lambda: second.max_offset == first.max_offset > end)
        assert (await call("log", "diff", one, tmp_path / "b"))[0] == 0
    code, _, told = await call(*flags)
    assert (code, f"{one} belongs to" in told, "init --force" in told) == (6, True, True)


async def test_an_adopt_that_the_coordinator_did_not_take_is_finished_by_init(
    etcd, tmp_path, monkeypatch
):
    """The directory has a claim that etcd lacks, so it has proved nothing: a person decides."""
    one = tmp_path / "a"
    await classic_log(one)

    async def refused(*_):
        raise CoordinatorRefusedError("etcd has no space")

    with monkeypatch.context() as patch:
        patch.setattr(EtcdClient, "commit", refused)
        code, _, told = await call(*ADOPT, one, "--node-id", 1, "--group", "g1")
    assert "hastore cluster init --force" in told, told
    async with hastore.open_node(group_node(one, 1, etcd)) as node:
        await status_once(lambda s: s["nodes"])
        code, told = None, "not up"
        while "not up" in told:  # it claims its id before it says that it is up
            code, _, told = await call("cluster", "init", "--force", "--group", "g1")
        assert code == 0, told
        # It leads before it serves, and has no role in between.
        await eventually(lambda: getattr(node.role_node, "takes_puts", False))
        assert (await put(node.role_node)).name == "PUT_OK"


async def test_only_one_log_is_adopted_by_a_group(etcd, tmp_path):
    """A second one may be another log, which nothing would tell apart: all begin with epoch 1."""
    await classic_log(tmp_path / "a")
    await classic_log(tmp_path / "b", 3)
    assert (await call(*ADOPT, tmp_path / "a", "--node-id", 1, "--group", "g1"))[0] == 0
    before = names(tmp_path / "b")
    code, shown, told = await call(*ADOPT, tmp_path / "b", "--node-id", 2, "--group", "g1")
    assert (code, shown, names(tmp_path / "b")) == (6, "", before)
    assert "the group has begun" in told
    assert "start node 2 with an empty directory" in told


async def test_what_cannot_be_adopted_is_refused_and_stays(etcd, tmp_path):
    """A log that is open, that was not closed, that has epochs; no log."""
    one = tmp_path / "a"
    async with master_on(one):
        code, _, told = await call(*ADOPT, one, "--node-id", 1, "--group", "g1")
        assert (code, "next" in told) == (6, True)
    await classic_log(one)
    (one / "abort").write_text("1")
    flags = ("--node-id", 1, "--group", "g1")
    assert "was not closed cleanly" in (await call(*ADOPT, one, *flags))[2]
    (one / "abort").unlink()
    (one / "epochFileCheckpoint").write_text("")
    assert "has epochs, but no identity.json" in (await call(*ADOPT, one, *flags))[2]
    (one / "epochFileCheckpoint").unlink()
    (tmp_path / "empty").mkdir()
    code, _, told = await call(*ADOPT, tmp_path / "empty", *flags)
    assert code == 6
    code, _, told = await call(*ADOPT, one, "--node-id", 1)
    assert (code, "Missing option '--group'" in told) == (2, True)
    assert read_identity(RealDisk(), str(one)) is None

"""`hastore cluster` with a real etcd, and nodes whose roles it decides."""

import json

import attrs
import pytest
import trio

import hastore
from hastore.cluster.connecting import open_coordinator
from hastore.cluster.etcd_http import EtcdHttp
from hastore.cluster.group_records import GroupConfig, Keys
from hastore.cluster.key_value_store import Delete, Put
from hastore.errors import CoordinatorLoginError, WrongNodeError
from hastore.status import PutMessageStatus
from tests.patience import PROCESS_WITHIN_S, WITHIN_S
from tests.support.commands.in_process import at, call, call_json
from tests.support.nodes.elected_nodes import (
    follow_its_master,
    has_all,
    master_of,
    nodes_by,
    status_once,
)
from tests.support.nodes.group_nodes import HA, node_config, put
from tests.support.waiting import eventually

KEYS = Keys.of("/hastore", "DefaultCluster", "g1")


async def once(code, *words):
    """Return what a command shows once it exits with a code: a busy node may miss its lease."""
    told = ""
    with trio.move_on_after(WITHIN_S):
        while True:
            ended, shown, told = await call(*words)
            if ended == code:
                return shown
            await trio.sleep(0.05)
    raise AssertionError(f"{words} does not exit with {code}: {told}")


async def test_a_group_with_etcd_elects_switches_over_and_fails_over(etcd, tmp_path):
    """A group's day: it begins by itself, is shown, changed and paused."""
    async with nodes_by(etcd, tmp_path) as nodes:
        status = await has_all(nodes)
        first = status["leader"]["id"]
        assert (status["group"], status["epoch"], status["master"]) == ("g1", 1, first)
        assert status["sync_state_set"] == [1, 2, 3]
        assert [node["id"] for node in status["nodes"]] == [1, 2, 3]
        second, third = (each for each in (1, 2, 3) if each != first)
        code, shown, told = await call("cluster", "switchover", "--to", second, "--dry-run")
        assert (code, shown) == (10, f"node {second} becomes master instead of node {first}\n")
        assert "nothing changed" in told
        code, done = await call_json("cluster", "switchover", "--to", second)
        assert (code, done["to"], done["epoch"], done["done"]) == (0, second, 2, True)
        assert 0 < done["took_s"] < 30
        await eventually(lambda: master_of(nodes) == second)  # the former one may still be ending
        assert await put(nodes[second - 1].role_node)
        by_hand = [word for node in nodes for word in ("--node", at(node))]
        code, _, told = await call("cluster", "failover", *by_hand, "--ids", "1,2,3")
        assert (code, "has a coordinator, which decides" in told) == (6, True)
        await has_all(nodes)

        code, _, told = await call("cluster", "failover", "--to", third)
        assert code == 6
        assert f"node {second} is master of epoch 2, and has its lease" in told
        # Who has just linked up may still copy that message, and would lack it.
        await eventually(lambda: len({node.max_offset for node in nodes}) == 1)
        code, shown, told = await call(
            "cluster", "failover", "--to", third, "--force-with-live-master"
        )
        assert code == 0, told
        assert f"node {third} is master of epoch 4" in shown
        await has_all(nodes)
        _, history = await call_json("cluster", "history")
        rows = [(e["epoch"], e["from"], e["to"], e["why"]) for e in history["epochs"]]
        assert rows == [
            (1, None, first, "election"),
            (2, first, second, "switchover"),
            (3, second, third, "failover"),
            (4, third, third, "election"),
        ]
        code, shown, _ = await call("cluster", "history")
        assert (code, len(shown.splitlines())) == (0, 5)

        assert (await call("cluster", "pause"))[0] == 0
        assert "paused already" in (await call("cluster", "pause"))[1]
        code, _, told = await call("cluster", "switchover")
        assert (code, "are paused" in told) == (6, True)
        assert "elections are paused" in (await call("cluster", "status"))[1]
        assert (await call("cluster", "resume"))[:2] == (0, "elections go on\n")


async def test_a_node_that_may_lack_messages_becomes_master_only_with_their_loss(etcd, tmp_path):
    """The only one that has all is lost; that is said first, and in the history."""
    ha = attrs.evolve(HA, sync_state_timeout_ms=300)

    def of(at):
        config = node_config(tmp_path / f"D{at}", at, (1, 2), coordinator=etcd, ha=ha)
        return hastore.open_node(config)

    async with of(1) as one:
        async with of(2) as two:
            status = await status_once(lambda s: len(s["nodes"]) == 2 and follow_its_master(s))
            first = status["leader"]["id"]
            if first != 1:
                assert (await call("cluster", "switchover", "--to", "1"))[0] == 0
            await eventually(lambda: master_of([one]) == 1)
            assert await put(one.role_node) is PutMessageStatus.PUT_OK
            await eventually(lambda: two.max_offset == one.max_offset)
        await status_once(lambda shown: shown["sync_state_set"] == [1])
        assert await put(one.role_node) is PutMessageStatus.PUT_OK
    async with of(2) as two:
        status = await status_once(lambda shown: any(n["is_up"] for n in shown["nodes"]))
        assert status["leader"] is None
        shown = (await call("cluster", "status"))[1]
        assert "none that is up may become it: start node 1" in shown
        code, _, told = await call("cluster", "failover", "--to", "2", "--force-with-live-master")
        assert code == 6
        assert "node 2 may lack acknowledged messages: node 2 is not in the SyncStateSet" in told
        assert "start node 1, which has all; if it is lost: --accept-loss" in told
        assert "what node 1 alone may have is not known: no answer" in told
        flags = ("--to", "2", "--accept-loss")
        code, dry = await call_json("cluster", "failover", *flags, "--dry-run")
        assert (code, dry["loss"]["silent"], dry["loss"]["at_least"]) == (10, [1], {})
        code, shown, _ = await call("cluster", "failover", *flags)
        assert (code, "node 2 is master of epoch" in shown) == (0, True)
        assert await put(two.role_node) is PutMessageStatus.PUT_OK
        _, history = await call_json("cluster", "history")
        assert history["epochs"][-2]["why"] == "failover with loss"


async def test_a_node_that_is_down_is_removed_and_comes_back_as_a_new_one(etcd, tmp_path):
    """Its id is free for another directory, which was refused before."""
    async with nodes_by(etcd, tmp_path, 2, ids=(1, 2, 3)) as nodes:
        third = node_config(tmp_path / "D3", 3, coordinator=etcd)
        async with hastore.open_node(third):
            await has_all(nodes)
            code, _, told = await call("cluster", "remove", "3")
            assert (code, "node 3 is up, and would come back" in told) == (6, True)
        other = attrs.evolve(third, store=attrs.evolve(third.store, data_dir=str(tmp_path / "E3")))
        with pytest.raises(WrongNodeError, match="is another directory than the one"):
            async with hastore.open_node(other):
                await trio.sleep_forever()
        code, shown, _ = await call("cluster", "remove", "3", "--dry-run")
        assert (code, "is free" in shown) == (10, True)
        assert (await call("cluster", "remove", "3"))[0] == 0
        status = await status_once(lambda shown: len(shown["nodes"]) == 2)
        assert status["sync_state_set"] == [1, 2]
        async with hastore.open_node(other):
            await status_once(lambda shown: shown["sync_state_set"] == [1, 2, 3])
        _, members = await call_json("cluster", "members")
        assert members["nodes"][0]["client_address"] is not None
        assert "0.1" in (await call("cluster", "members"))[1] or members["nodes"]


async def test_a_group_that_does_not_begin_by_itself_waits_for_init(etcd, tmp_path):
    """Where its ids are not configured; a second init is refused."""
    async with nodes_by(etcd, tmp_path, ids=None) as nodes:
        status = await status_once(lambda shown: len(shown["nodes"]) == 3)
        assert (status["epoch"], status["leader"]) == (None, None)
        assert (
            "does not know the group: hastore cluster init" in (await call("cluster", "status"))[1]
        )
        shown = await once(10, "cluster", "init", "--dry-run")
        assert shown == "the group begins with nodes 1, 2, 3\n"
        shown = await once(0, "cluster", "init", "--ids", "1,2", "-o", "json")
        assert json.loads(shown)["done"]
        await has_all(nodes)
        code, _, told = await call("cluster", "init", "--force")
        assert (code, "has its state" in told) == (6, True)


async def test_an_alarm_is_shown_until_a_person_clears_it(etcd, tmp_path):
    """A state that is gone while the nodes have logs takes an init by force."""
    async with nodes_by(etcd, tmp_path) as nodes, open_coordinator(etcd) as store:
        before = await has_all(nodes)
        await put(nodes[before["leader"]["id"] - 1].role_node)
        config = GroupConfig(alarm="restored to the past")
        await store.commit([], [Put(KEYS.config, config.encode())])
        shown = (await call("cluster", "status"))[1]
        assert "alarm: restored to the past" in shown
        code, _, told = await call("cluster", "switchover")
        assert (code, "hastore cluster clear-alarm" in told) == (6, True)
        assert (await call("cluster", "clear-alarm"))[0] == 0
        assert (await call("cluster", "clear-alarm"))[1] == "there is no alarm\n"
        await store.commit([], [Delete(KEYS.state), Delete(KEYS.leader)])
        await status_once(lambda shown: all(n["end"] for n in shown["nodes"]))
        code, _, told = await call("cluster", "init")
        assert (code, "already with a log" in told) == (6, True)
        assert (await call("cluster", "init", "--force"))[0] == 0
        await eventually(lambda: master_of(nodes) is not None)


async def test_mistakes_are_one_line_with_a_next_step(etcd, tmp_path, monkeypatch):
    """What is wrong, where, and what to type."""
    async with nodes_by(etcd, tmp_path) as nodes:
        await has_all(nodes)
        for arguments, code, said, step in (
            (("status", "--group", "g2"), 2, "does not know group g2", "--group g1"),
            (
                ("status", "--cluster", "other", "--group", "g1"),
                2,
                "does not know group g1 in cluster other",
                "it knows group g1 in cluster DefaultCluster",
            ),
            (("switchover", "--to", "9"), 6, "the group has no node 9", "up now: nodes 1, 2, 3"),
            (("failover",), 2, "Missing option '--to'", "--help"),
            (("remove", "9"), 6, "knows no node 9", "nodes 1, 2, 3"),
            (("status", "--etcd", "http://127.0.0.1:1"), 3, "127.0.0.1:1", "next"),
            (("status", "--etcd", "127.0.0.1:2379"), 2, "is not the URL", "--help"),
        ):
            found, shown, told = await call("cluster", *arguments)
            assert (found, shown) == (code, ""), arguments
            assert said in told, arguments
            assert step in told, arguments
            assert "Traceback" not in told
    monkeypatch.delenv("HASTORE_CLUSTER_ETCD")
    code, _, told = await call("cluster", "status")
    assert (code, "no etcd is named" in told) == (2, True)


async def test_the_group_is_found_by_the_configuration_file(etcd, tmp_path, monkeypatch):
    """The one that its nodes have."""
    monkeypatch.delenv("HASTORE_CLUSTER_ETCD")
    file = tmp_path / "node.toml"
    endpoints = json.dumps(etcd.endpoints)
    file.write_text(f'[node]\ngroup = "g1"\n[cluster]\nname = "orders"\netcd = {endpoints}')
    named = attrs.evolve(etcd, cluster_name="orders")
    async with nodes_by(named, tmp_path, 1, ids=(1,)) as nodes:
        await eventually(lambda: master_of(nodes) == 1)
        code, shown, _ = await call("cluster", "status", "-c", file)
        assert (code, "group g1 of orders  epoch 1  master node 1" in shown) == (0, True)


async def test_a_wrong_password_is_refused_in_one_line(etcd, tmp_path, monkeypatch):
    """By a command and by a node, which does not wait for a better one."""
    (url,) = etcd.endpoints
    async with EtcdHttp.open(None) as http:
        for path, body in (
            ("user/add", {"name": "root", "password": "right"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ):
            await http.ask(url, f"/v3/auth/{path}", body, {}, PROCESS_WITHIN_S)
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    monkeypatch.setenv("HASTORE_CLUSTER_USER", "root")
    monkeypatch.setenv("HASTORE_CLUSTER_PASSWORD_FILE", str(password))
    code, shown, told = await call("cluster", "status")
    assert (code, shown, len(told.splitlines())) == (7, "", 2), told
    named = attrs.evolve(etcd, user="root", password_file=str(password))
    with pytest.raises(CoordinatorLoginError):
        async with nodes_by(named, tmp_path, 1, ids=(1,)):
            await trio.sleep_forever()
    password.write_text("right\n")
    async with nodes_by(named, tmp_path, 1, ids=(1,)):
        status = await status_once(lambda shown: shown["leader"])
        assert status["leader"]["id"] == 1
    password.chmod(0o644)
    code, _, told = await call("cluster", "status")
    assert (code, f"chmod 600 {password}" in told) == (2, True)


async def test_a_change_of_a_group_is_in_the_audit_file(etcd, tmp_path, monkeypatch):
    """A dry run is not; and without the file nothing is changed."""
    async with open_coordinator(etcd) as store:
        await store.commit([], [Put(KEYS.config, GroupConfig().encode())])
        file = tmp_path / "audit.log"
        monkeypatch.setenv("HASTORE_AUDIT_FILE", str(tmp_path))
        assert (await call("cluster", "pause"))[0] == 2
        monkeypatch.setenv("HASTORE_AUDIT_FILE", str(file))
        assert (await call("cluster", "pause", "--dry-run"))[0] == 10
        assert not file.exists()
        assert (await call("cluster", "pause"))[0] == 0
        assert (await call("cluster", "pause"))[0] == 0  # is paused already
        assert (await call("cluster", "switchover", "--to", "2"))[0] == 6
        done, refused = map(json.loads, file.read_text().splitlines())
    assert (done["action"], done["outcome"], done["what"]["group"]) == (
        "cluster-pause", "done", "g1",
    )  # fmt: skip
    assert done["who"]
    assert done["peer"]
    assert done["what"]["keys"] == KEYS.config
    assert "elections are paused" in done["what"]["change"]
    assert (refused["action"], refused["outcome"]) == ("cluster-switchover", "refused")


async def test_texts_of_etcd_are_escaped(etcd):
    """Who may write its keys cannot move the cursor of who looks."""
    evil = "x\x1b[2J\x1b]52;c;cm0=\x07\n\x9b31m\u202e"
    async with open_coordinator(etcd) as store:
        config = GroupConfig(alarm=evil)
        other = Keys.of("/hastore", evil, "g1")
        puts = [
            Put(KEYS.config, config.encode()),
            Put(other.config, config.encode()),
            Put(f"{KEYS.base}/members/{evil}", evil.encode()),
            Put(f"{KEYS.base}/members/1", json.dumps({"id": evil, "client": evil}).encode()),
        ]
        await store.commit([], puts)
        shown = ""
        for words in (
            *(("cluster", word, "--group", "g1") for word in ("status", "members", "history")),
            ("cluster", "status", "--cluster", "none"),
            ("cluster", "status", "--group", "g1", "-o", "json"),
            ("cluster", "switchover", "--to", "1"),
            ("cluster", "clear-alarm", "--dry-run"),
        ):
            _, out, told = await call(*words)
            shown += out + told
            assert "bug in hastore" not in told, words
    found = {c for c in shown if not c.isprintable() and c != "\n"}
    assert not found, shown
    assert r"x\x1b[2J" in shown

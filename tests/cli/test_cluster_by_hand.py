"""`hastore cluster failover` of a group without a coordinator, by its nodes."""

from hastore.errors import UnreachableError
from hastore_cli.cluster import by_hand
from hastore_cli.node import address as node_address
from tests.support.commands.in_process import at, call, call_json
from tests.support.nodes.group_nodes import group, promote, put
from tests.support.waiting import eventually


def ports(*nodes):
    """Return the flags that name the nodes."""
    return [word for node in nodes for word in ("--node", at(node))]


async def test_a_majority_gives_its_master_up_and_the_newest_log_leads(tmp_path):
    """The former master comes back as a slave of the new one."""
    async with group(tmp_path) as (one, two, three):
        master = await promote(one, two, three)
        await put(master)
        await eventually(lambda: two.max_offset == three.max_offset == master.max_offset)
        code, shown = await call_json("cluster", "status", *ports(one, two, three))
        assert (code, shown["group"], shown["silent"]) == (0, "g1", [])
        assert [(n["id"], n["role"], n["last_epoch"]) for n in shown["nodes"]] == [
            (1, "master", 1),
            (2, "slave", 1),
            (3, "slave", 1),
        ]
        code, _, told = await call("cluster", "failover", *ports(one, two))
        assert (code, "node 1 answers, and is master of epoch 1" in told) == (6, True)
        others = (*ports(two, three), "--ids", "1,2,3")
        code, shown, told = await call("cluster", "failover", *others, "--to", "3", "--dry-run")
        assert (code, shown) == (10, "node 3 becomes master of epoch 3\n")
        assert two.status().seen_epoch == 1
        code, done = await call_json("cluster", "failover", *others, "--to", "3")
        assert (code, done["to"], done["epoch"], done["done"]) == (0, 3, 3, True)
        await eventually(lambda: three.role_node.epoch == 3)
        await eventually(lambda: two.status().epoch == 3)
        assert len((await call("cluster", "status", *ports(two, three)))[1].splitlines()) == 3


async def test_a_minority_is_refused_and_a_silent_node_is_named(tmp_path):
    """With --accept-loss it is taken, and what may be lost is said."""
    async with group(tmp_path) as (one, two, three):
        await promote(one, two, three)
        await two.step_down("a test")
        alone = (*ports(two), "--node", "127.0.0.1:1", "--ids", "1,2,3")
        code, _, told = await call("cluster", "failover", *alone)
        assert code == 6
        assert "node 2 alone is no majority of 1, 2, 3: the others may have" in told
        code, _, told = await call("cluster", "status", *ports(two), "--node", "127.0.0.1:1")
        assert (code, "127.0.0.1:1 does not answer" in told) == (3, True)
        code, _, told = await call("cluster", "status", "--node", "127.0.0.1:1")
        assert (code, "cannot connect to 127.0.0.1:1" in told) == (3, True)
        code, shown, _ = await call("cluster", "failover", *alone, "--accept-loss", "--dry-run")
        assert code == 10
        assert "node 2 becomes master of epoch 3; node 2 alone is no majority" in shown
        code, shown, told = await call("cluster", "failover", *alone, "--accept-loss")
        assert (code, "node 2 is master of epoch 3" in shown) == (0, True), told


async def test_a_node_that_does_not_answer_while_it_changes_its_role_is_asked_again(
    tmp_path, monkeypatch
):
    """Its log is being opened as a master's; only the time that was given ends the command."""
    asked = []
    fetch = node_address.fetch_status

    async def silent_at_times(address):
        asked.append(address)
        if len(asked) in {2, 4}:  # the first question is answered, the promise's and the role's not
            raise UnreachableError("no answer")
        return await fetch(address)

    monkeypatch.setattr(node_address, "fetch_status", silent_at_times)
    async with group(tmp_path, 1) as (one,):
        code, shown, told = await call("cluster", "failover", *ports(one), "--ids", "1")
        assert (code, "node 1 is master of epoch" in shown) == (0, True), told
    assert len(asked) >= 5


async def test_one_of_the_nodes_that_promised_is_asked_again_too(tmp_path, monkeypatch):
    """Those that answer at once would be no majority."""
    asked = []
    fetch = node_address.fetch_status

    async def silent_once(address):
        asked.append(address)
        if address == two.address and asked.count(address) == 2:  # right after its promise
            raise UnreachableError("no answer")
        return await fetch(address)

    monkeypatch.setattr(node_address, "fetch_status", silent_once)
    async with group(tmp_path, 3) as (_, two, three):
        flags = (*ports(two, three), "--ids", "1,2,3")
        code, shown, told = await call("cluster", "failover", *flags, "--to", "3")
        assert (code, "node 3 is master of epoch" in shown) == (0, True), told
    assert asked.count(two.address) >= 3


async def test_a_node_that_dies_after_its_promise_holds_the_others_up_for_a_while_only(
    tmp_path, monkeypatch
):
    """They are a majority."""
    monkeypatch.setattr(by_hand, "_REST_TIME_MAX_S", 0.2)
    asked = []
    fetch = node_address.fetch_status

    async def silent_for_ever(address):
        asked.append(address)
        if address == one.address and asked.count(address) > 1:
            raise UnreachableError("no answer")
        return await fetch(address)

    monkeypatch.setattr(node_address, "fetch_status", silent_for_ever)
    async with group(tmp_path, 3) as (one, two, three):
        flags = (*ports(one, two, three), "--ids", "1,2,3")
        code, shown, told = await call("cluster", "failover", *flags, "--to", "3")
        assert (code, "node 3 is master of epoch" in shown) == (0, True), told

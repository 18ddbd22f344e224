"""What a failover would lose, and what it has cut: by topic and count, from the nodes' logs."""

import contextlib
from functools import partial

import trio

import hastore
from hastore.cluster.connecting import open_coordinator
from hastore.cluster.group_records import Incarnation, Keys, Member
from hastore.cluster.key_value_store import Put
from hastore.env.real import real_env
from hastore.epoch_history import EpochSpan
from hastore.status import PutMessageStatus
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.recovery.log_cut import LogCut
from hastore.testing.free_port import FreePort
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore_cli.app.terminal import number
from hastore_cli.cluster import losses
from hastore_scenarios.judge.log_image import read_records
from tests.support.commands.in_process import at, call, call_json
from tests.support.nodes.elected_nodes import has_all, master_of, nodes_by, status_once
from tests.support.nodes.group_nodes import FILE_SIZE, group, node_config, promote, put
from tests.support.nodes.lossy_failover import LOST, two_ahead_of_three
from tests.support.nodes.raw_client import RawClient, raw_client
from tests.support.waiting import eventually


async def test_a_failover_says_first_what_it_loses_and_history_what_was_cut(tmp_path):
    """The dry run's counts are those of the cut afterwards; the node that has more is named."""
    async with two_ahead_of_three(tmp_path) as (two, three, _):
        nodes = ("--node", at(two), "--node", at(three))
        flags = (*nodes, "--ids", "1,2,3,4,5", "--to", 3)
        code, shown, told = await call("cluster", "failover", *flags, "--dry-run")
        assert code == 6
        assert f"would be lost, at least: orders {LOST}; the nodes that have it" in shown
        assert "nodes 2, 3 alone are no majority of 1, 2, 3, 4, 5" in told
        assert "what nodes 1, 4, 5 alone may have is not known" in told
        code, refused = await call_json("cluster", "failover", *flags, "--dry-run")
        assert (code, refused["done"]) == (6, False)
        code, dry = await call_json("cluster", "failover", *flags, "--dry-run", "--accept-loss")
        assert (code, dry["loss"]) == (10, refused["loss"])
        assert dry["loss"]["at_least"] == {"orders": LOST}
        assert dry["loss"]["silent"] == [1, 4, 5]
        (node,) = dry["loss"]["nodes"]
        assert (node["id"], node["from"], node["to"]) == (2, three.max_offset, two.max_offset)
        code, _, told = await call("cluster", "failover", *flags, "--accept-loss")
        assert (code, f"orders {LOST}" in told) == (0, True)
        await eventually(lambda: two.status().last_cut is not None)
        await eventually(lambda: two.status().epoch == three.status().epoch)  # it knows the epoch
        code, past = await call_json("cluster", "history", *nodes)
        cut = next(each for each in past["epochs"] if each["cuts"])
        assert (code, cut["epoch"], past["other_cuts"]) == (0, 3, [])
        assert [(c["id"], c["messages"]) for c in cut["cuts"]] == [(2, {"orders": LOST})]
        shown = (await call("cluster", "history", *nodes))[1]
        assert f"node 2 cut orders {LOST}" in shown


async def test_the_count_of_a_damaged_log_is_called_a_lower_bound(tmp_path):
    """It names the node, and the offset that cannot be read.

    The count ends there: consume queues have no units beyond the confirm offset yet, so nothing
    confirms that what follows the damage is a record.
    """
    async with two_ahead_of_three(tmp_path) as (two, three, _):
        records = read_records(real_env().disk, str(tmp_path / "2"))
        lost = [each.physic_offset for each in records if each.physic_offset >= three.max_offset]
        assert len(lost) == LOST
        unread_from = lost[4]
        file = tmp_path / "2" / "commitlog" / file_name(unread_from // FILE_SIZE * FILE_SIZE)
        with file.open("r+b") as log:
            log.seek(unread_from % FILE_SIZE)
            log.write(b"\xff" * 8)  # its size and magic
        nodes = ("--node", at(two), "--node", at(three))
        flags = ("cluster", "failover", *nodes, "--ids", "1,2,3,4,5", "--to", 3, "--accept-loss")
        code, dry = await call_json(*flags, "--dry-run")
        (node,) = dry["loss"]["nodes"]
        assert (code, node["messages"]) == (10, {"orders": 4})
        assert (node["id"], node["unread_from"]) == (2, unread_from)
        shown = (await call(*flags, "--dry-run"))[1]
        at_offset = f"its log cannot be read at {number(unread_from)}"
        assert f"node 2 may have more than that: {at_offset}" in shown


async def test_history_says_where_the_count_of_a_cut_ended(tmp_path):
    """In the table, in a line below it, and in JSON."""
    cut = LogCut(
        physic_offset=100,
        end_offset=900,
        reason="the group went on without it",
        time_ms=5,
        epochs=(EpochSpan(1, 100, 900),),
        messages={"orders": 4},
        saved_paths=(),
        unread_from=700,
    )
    async with group(tmp_path) as (one, two, three):
        await promote(one, two, three)
        await promote(two, one, three)
        path = tmp_path / "3" / cut.path
        path.parent.mkdir()
        path.write_bytes(cut.encode())
        nodes = ("--node", at(two), "--node", at(three))
        code, past = await call_json("cluster", "history", *nodes)
        (told,) = (cut for each in past["epochs"] for cut in each["cuts"])
        assert (code, told["messages"], told["unread_from"]) == (0, {"orders": 4}, 700)
        shown = (await call("cluster", "history", *nodes))[1]
        assert "node 3 cut at least orders 4" in shown
        assert "node 3 may have cut more than that at 100: what begins at 700 could not be" in shown


async def serve(config, stops, *, task_status):
    """Run a node until its event in ``stops``; the second one says that it has ended."""
    ended = trio.Event()
    async with hastore.open_node(config) as node:
        stop = trio.Event()
        stops[config.node_id] = (stop, ended)
        task_status.started(node)
        await stop.wait()
    ended.set()


async def stopped(stops, node_id):
    """Stop a node, and wait until it has ended."""
    stop, ended = stops[node_id]
    stop.set()
    await ended.wait()


async def test_with_a_coordinator_the_loss_is_counted_where_it_is_refused(etcd, tmp_path):
    """A node that was down lacks what the others acknowledged meanwhile; one of them is up."""
    configs = {at: node_config(tmp_path / f"D{at}", at, coordinator=etcd) for at in (1, 2, 3)}
    stops = {}
    async with trio.open_nursery() as nursery:
        nodes = {at: await nursery.start(serve, configs[at], stops) for at in configs}
        first = (await has_all(list(nodes.values())))["leader"]["id"]
        left, behind = (each for each in configs if each != first)
        await stopped(stops, behind)
        await status_once(lambda shown: shown["sync_state_set"] == sorted([first, left]))
        for _ in range(LOST):
            assert await put(nodes[first].role_node) is PutMessageStatus.PUT_OK
        assert (await call("cluster", "pause"))[0] == 0
        await stopped(stops, first)
        await nursery.start(serve, configs[behind], stops)
        await status_once(lambda s: [n["is_up"] for n in s["nodes"]].count(True) == 2)
        flags = ("cluster", "failover", "--to", behind, "--accept-loss", "--dry-run")
        code, shown = await call_json(*flags)
        assert (code, shown["done"], "are paused" in shown["what"]) == (6, False, True)
        assert (shown["loss"]["at_least"], shown["loss"]["silent"]) == ({"orders": LOST}, [first])
        assert [node["id"] for node in shown["loss"]["nodes"]] == [left]
        for node_id in (left, behind):
            await stopped(stops, node_id)


async def test_a_count_that_takes_too_long_holds_no_failover_up(tmp_path, monkeypatch):
    """The node is one of those of which nothing is known."""
    monkeypatch.setattr(losses, "COUNT_TIME_MAX_S", 0.0)
    async with two_ahead_of_three(tmp_path) as (two, three, _):
        flags = ("--node", at(two), "--node", at(three), "--ids", "1,2,3,4,5", "--to", 3)
        code, dry = await call_json("cluster", "failover", *flags, "--accept-loss", "--dry-run")
    assert (code, dry["loss"]["nodes"], dry["loss"]["silent"]) == (10, [], [1, 2, 4, 5])


async def test_without_a_loss_nothing_is_listed(tmp_path):
    """Both logs are the same."""
    async with group(tmp_path) as (one, two, three):
        master = await promote(one, two, three)
        await put(master)
        await eventually(lambda: two.max_offset == three.max_offset == master.max_offset)
        await one.step_down("a test")
        flags = ("--node", at(two), "--node", at(three), "--ids", "1,2,3")
        code, dry = await call_json("cluster", "failover", *flags, "--dry-run")
        assert (code, dry["loss"]["at_least"], dry["loss"]["nodes"]) == (10, {}, [])


async def test_history_of_nodes_that_do_not_answer_is_an_error(tmp_path):
    """One that does not is named, none is exit code 3."""
    with FreePort() as free:
        silent = f"127.0.0.1:{free.number}"
        async with group(tmp_path) as (one, two, three):
            await promote(one, two, three)
            code, shown, told = await call(
                "cluster", "history", "--node", at(one), "--node", silent
            )
            assert (code, len(shown.splitlines()), f"{silent} does not" in told) == (3, 2, True)
        code, _, told = await call("cluster", "history", "--node", silent)
        assert (code, "cannot connect" in told) == (3, True)


async def older_node(nursery, real=None):
    """Serve as a node of a version before request 28104, and return its address.

    It answers what the ``real`` node does, or, without one, nothing but that.
    """

    async def serve_client(stream):
        client = RawClient(stream.socket)
        async with contextlib.AsyncExitStack() as stack:
            behind = None if real is None else await stack.enter_async_context(raw_client(real))
            while (asked := await client.receive()) is not None:
                if behind is None or asked.code == RequestCode.GROUP_LOG:
                    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    remark = f"request type {asked.code} not supported"
                    await client.send(asked.response(code, remark=remark))
                else:
                    await client.send(await behind.ask(asked))

    serve_all = partial(trio.serve_tcp, serve_client, 0, host="127.0.0.1")
    (listener,) = await nursery.start(serve_all)
    return "{}:{}".format(*listener.socket.getsockname())


async def test_history_is_shown_while_nodes_are_upgraded(nursery, tmp_path):
    """The one that is too old is named; what the others tell is shown, and that is no error."""
    async with group(tmp_path) as (one, two, three):
        await promote(one, two, three)
        old = await older_node(nursery, three.address)
        nodes = ("--node", at(one), "--node", at(two), "--node", old)
        code, shown, told = await call("cluster", "history", *nodes)
        assert (code, len(shown.splitlines())) == (0, 2)
        assert told == "node 3 is too old to say what it has cut: upgrade it\n"
        code, past = await call_json("cluster", "history", *nodes)
        assert (code, past["silent"], past["too_old"]) == (0, [], [3])
        assert [each["epoch"] for each in past["epochs"]] == [1]
        code, shown, told = await call("cluster", "history", "--node", old)
        assert (code, shown, "node 3 is too old" in told) == (3, "", True)
        await one.step_down("a test")
        flags = ("--node", at(one), "--node", at(two), "--node", old, "--ids", "1,2,3")
        code, dry = await call_json("cluster", "failover", *flags, "--dry-run")
        assert (code, dry["loss"]["silent"], dry["loss"]["too_old"]) == (10, [3], [3])
        told = (await call("cluster", "failover", *flags, "--dry-run"))[2]
        assert "what node 3 alone may have is not known: its version cannot say it" in told
    nursery.cancel_scope.cancel()


async def test_history_of_a_coordinator_is_shown_while_nodes_are_upgraded(nursery, etcd, tmp_path):
    """Likewise; etcd has the address of the one that is too old."""
    async with (
        nodes_by(etcd, tmp_path, 2, ids=(1, 2)) as nodes,
        open_coordinator(etcd) as store,
    ):
        await eventually(lambda: master_of(nodes) is not None)
        await status_once(lambda shown: shown["leader"] is not None)
        older = Member(
            node=Incarnation(3, "u3", 1),
            kept_since=1,
            role="slave",
            last_epoch=1,
            end=0,
            ha_address="127.0.0.1:1",
            client_address=await older_node(nursery),
        )
        keys = Keys.of("/hastore", "DefaultCluster", "g1")
        await store.commit([], [Put(keys.member(3), older.encode())])
        code, shown, told = await call("cluster", "history")
        assert (code, len(shown.splitlines())) == (0, 2)
        assert "node 3 is too old to say what it has cut: upgrade it" in told
        code, past = await call_json("cluster", "history")
        assert (code, past["silent"], past["too_old"]) == (0, [], [3])
    nursery.cancel_scope.cancel()

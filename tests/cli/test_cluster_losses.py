"""What a failover would lose, and what it has cut: by topic and count, from the nodes' logs."""

from hastore.testing.free_port import FreePort
from hastore_cli.cluster import losses
from tests.support.commands.in_process import at, call, call_json
from tests.support.nodes.group_nodes import group, promote, put
from tests.support.nodes.lossy_failover import LOST, two_ahead_of_three
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
        code, past = await call_json("cluster", "history", *nodes)
        cut = next(each for each in past["epochs"] if each["cuts"])
        assert (code, cut["epoch"], past["other_cuts"]) == (0, 3, [])
        assert [(c["id"], c["messages"]) for c in cut["cuts"]] == [(2, {"orders": LOST})]
        shown = (await call("cluster", "history", *nodes))[1]
        assert f"node 2 cut orders {LOST}" in shown


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
    free = FreePort()
    silent = f"127.0.0.1:{free.number}"
    try:
        async with group(tmp_path) as (one, two, three):
            await promote(one, two, three)
            code, shown, told = await call(
                "cluster", "history", "--node", at(one), "--node", silent
            )
            assert (code, len(shown.splitlines()), f"{silent} does not" in told) == (3, 2, True)
        code, _, told = await call("cluster", "history", "--node", silent)
        assert (code, "cannot connect" in told) == (3, True)
    finally:
        free.release()

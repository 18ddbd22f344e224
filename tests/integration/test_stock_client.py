"""Apache's C++ client sends to a hastore master and push-consumes from it."""

import json
from functools import partial

import pytest
import trio

import hastore
from hastore.client.admin import AdminClient
from tests.integration.stock_client import (
    CONSUMER,
    STUBBORN_PRODUCER,
    consume,
    find_stock_python,
    produce,
    run,
)
from tests.patience import PROCESS_WITHIN_S
from tests.support.nodes.directory import Directory, known
from tests.support.nodes.group_nodes import node_config, promote
from tests.support.nodes.reading import dispatched, open_master
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def stock_python():
    return find_stock_python()


async def test_stock_consumer_receives_what_a_stock_producer_sends(stock_python, tmp_path):
    """Each message once, even if sent while the consumer waits; its offsets survive a restart."""
    async with open_master(tmp_path / "m") as master:
        await produce(stock_python, master, tmp_path, "Stock", range(40))
        async with (
            AdminClient.connect(master.address) as admin,
            trio.open_nursery() as nursery,
        ):

            async def is_member():
                return await admin.members("CID_a")

            async def more():
                await eventually(is_member)
                await produce(stock_python, master, tmp_path, "Stock", range(40, 60), size=20_000)

            nursery.start_soon(more)
            rows = await consume(stock_python, master, tmp_path, "Stock", "CID_a", wanted=60)
        assert sorted(row["number"] for row in rows) == list(range(60))
        assert {row["keys"] for row in rows} == {f"k{n}" for n in range(60)}
        large = [row for row in rows if row["number"] >= 40]
        assert {row["size"] for row in large} == {len("40 ") + 20_000}
        async with AdminClient.connect(master.address) as admin:
            offsets = await admin.consumer_offsets()
            committed = sum(offsets["Stock", "CID_a"].values())
            assert await admin.members("CID_a") == []
        assert committed == 60
    async with open_master(tmp_path / "m") as master:
        await produce(stock_python, master, tmp_path, "Stock", range(60, 65))
        rows = await consume(stock_python, master, tmp_path, "Stock", "CID_a", wanted=5)
        assert sorted(row["number"] for row in rows) == [60, 61, 62, 63, 64]


async def test_message_that_a_stock_consumer_returns_is_redelivered(stock_python, tmp_path):
    """It comes once more after a delay, from the retry topic, with one attempt more."""
    table = "1s 1s 1s 1s"
    async with open_master(tmp_path / "m", {"message_delay_level": table}) as master:
        await produce(stock_python, master, tmp_path, "Stock", range(20))
        rows = await consume(stock_python, master, tmp_path, "Stock", "CID_returns", wanted=22)
    again = [row["number"] for row in rows if row["times"] > 0]
    assert {row["number"] for row in rows} == set(range(20))
    assert len(again) == len(set(again))
    assert {7, 17} <= set(again)
    assert {row["times"] for row in rows} == {0, 1}
    assert {row["topic"] for row in rows} <= {"Stock", "%RETRY%CID_returns"}


async def test_orderly_stock_consumer_reads_each_queue_in_order(stock_python, tmp_path):
    """An orderly consumer locks its queues."""
    async with open_master(tmp_path / "m") as master:
        await produce(stock_python, master, tmp_path, "Stock", range(40))
        rows = await consume(
            stock_python, master, tmp_path, "Stock", "CID_c", wanted=40, orderly=True
        )
    assert sorted(row["number"] for row in rows) == list(range(40))
    for queue_id in {row["queue"] for row in rows}:
        offsets = [row["offset"] for row in rows if row["queue"] == queue_id]
        assert offsets == sorted(offsets)


async def test_stock_consumer_receives_only_the_tags_of_its_expression(stock_python, tmp_path):
    """The node also stores its group."""
    async with open_master(tmp_path / "m") as master:
        await produce(stock_python, master, tmp_path, "Stock", range(30))
        await dispatched(master, master.max_offset)
        rows = await consume(stock_python, master, tmp_path, "Stock", "CID_d", wanted=15, tags="a")
        groups = json.loads((tmp_path / "m/config/subscriptionGroup.json").read_text())
    assert sorted(row["number"] for row in rows) == list(range(0, 30, 2))
    assert list(groups["subscriptionGroupTable"]) == ["CID_d"]


@pytest.mark.soak
async def test_stock_clients_of_all_nodes_follow_a_failover(stock_python, tmp_path):
    """Given every node as a name server: no restart, nothing lost, nothing skipped.

    They ask for routes every 30 s, and send to the former master until then.
    """
    directory = Directory()
    open_one = partial(hastore.open_node, directory=directory)
    printed = {}
    async with (
        open_one(node_config(tmp_path / "1", 1, (1, 2))) as one,
        open_one(node_config(tmp_path / "2", 2, (1, 2))) as two,
    ):
        addresses = one.address, two.address
        await promote(one, two, epoch=1)
        directory.known = known(*addresses, master=one.address)
        where = ";".join(f"{host}:{port}" for host, port in addresses)

        async def client(script, *args):
            printed[script] = await run(stock_python, script, where, tmp_path, "Stock", *args)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, STUBBORN_PRODUCER, 200)
            await eventually(lambda: one.max_offset > 3_000)
            nursery.start_soon(client, CONSUMER, "CID_f", "*", "no", 200, PROCESS_WITHIN_S)
            await eventually(lambda: one.max_offset > 8_000)
            await promote(two, one, epoch=2, members={1, 2})
            directory.known = known(*addresses, master=two.address)
    sent = [line.split() for line in printed[STUBBORN_PRODUCER].splitlines()]
    assert [int(number) for number, _ in sent] == list(range(200))
    assert any(failed != "0" for _, failed in sent)
    received = [json.loads(line)["number"] for line in printed[CONSUMER].splitlines()]
    assert set(received) == set(range(200))

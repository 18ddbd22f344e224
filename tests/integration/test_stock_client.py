"""Apache's C++ client sends to a hastore master and push-consumes from it."""

import json

import pytest
import trio

from hastore.client.admin import AdminClient
from tests.integration.stock_client import consume, find_stock_python, produce
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

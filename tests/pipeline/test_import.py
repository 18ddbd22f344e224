"""Imports into real masters: delivery, refused messages, and where to continue after an error."""

import json

import pytest
import trio

from hastore.client.admin import AdminClient
from hastore.env.real import real_env
from hastore.errors import ConfigError, UnreachableError
from hastore.message import PROPERTY_CRC32
from hastore.pipeline.transfer.import_job import import_messages
from hastore.pipeline.transfer.import_rows import find_files, read_rows
from hastore.pipeline.transfer.import_sender import ImportTally, send_rows
from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from tests.support.nodes.reading import open_master
from tests.support.nodes.scripted_node import scripted_node


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def orders(count, **fields):
    """Return rows that go to eight queues in turn; each queue's rows are numbered."""
    return [
        {
            "topic": "orders",
            "queue_id": number % 8,
            "body": f"order {number}",
            "properties": {"TAGS": "t", "KEYS": f"k{number}", "UNIQ_KEY": f"U{number}"},
            "born_timestamp_ms": 1_700_000_000_000 + number,
            **fields,
        }
        for number in range(count)
    ]


async def imported(path, master, **options):
    """Run the job in a thread with its own event loop, as a user does."""
    return await trio.to_thread.run_sync(lambda: import_messages(path, master.address, **options))


def stored(path):
    """Return all messages of a store, by the walk record by record."""
    disk = real_env().disk
    walker = LogWalker(disk, find_log(disk, str(path)))
    return [
        decode(walker.read(offset, check.size))
        for offset, check in walker.walk()
        if check.kind is RecordKind.MESSAGE
    ]


async def test_all_fields_arrive_in_the_order_of_the_queue(tmp_path):
    """The import creates the topic with as many queues as the rows name."""
    rows = orders(1_000, flag=5)
    path = write(tmp_path / "orders.jsonl", rows)
    async with open_master(tmp_path / "m") as master:
        result = await imported(path, master)
        async with AdminClient.connect(master.address) as admin:
            config = (await admin.topics())["orders"]
    assert (config.read_queue_nums, config.write_queue_nums) == (8, 8)
    assert result.summary["sent"] == result.summary["rows"] == result.summary["skip"] == 1_000
    assert result.summary["queues_made"] == {"orders": 8}
    assert not result.found
    found = stored(tmp_path / "m")
    assert [message.body.decode() for message in found] == [row["body"] for row in rows]
    for message, row in zip(found, rows, strict=True):
        own = {name: value for name, value in message.properties.items() if name != PROPERTY_CRC32}
        assert own | row["properties"] == own
        assert (message.topic, message.queue_id) == ("orders", row["queue_id"])
        assert (message.flag, message.born_timestamp_ms) == (5, row["born_timestamp_ms"])
        assert message.queue_offset == int(row["body"].split()[1]) // 8


async def test_skip_counts_rows_over_all_parts(tmp_path):
    """To skip more rows than there are is an error."""
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "part-00000.jsonl", orders(10))
    write(folder / "part-00001.jsonl", orders(10))
    async with open_master(tmp_path / "m") as master:
        result = await imported(str(folder), master, skip=13)
        assert (result.summary["skipped"], result.summary["sent"]) == (13, 7)
        with pytest.raises(ConfigError, match="has 20 rows, so 21 cannot be skipped"):
            await imported(str(folder), master, skip=21)
    assert [message.body for message in stored(tmp_path / "m")] == [
        b"order %d" % number for number in range(3, 10)
    ]


async def test_refused_messages_are_reported_and_the_rest_is_sent(tmp_path):
    """One is too large for the node, one for a frame; the result has their places and reasons."""
    rows = orders(5)
    rows[1]["body"] = "x" * 300_000
    rows[3]["properties"] = {"P": "y" * 70_000}
    path = write(tmp_path / "orders.jsonl", [*rows, {"topic": "SCHEDULE_TOPIC_XXXX", "body": ""}])
    async with open_master(tmp_path / "m") as master:
        result = await imported(path, master)
    assert result.found
    summary = result.summary
    assert (summary["sent"], summary["failed"], summary["unknown"]) == (3, 2, 0)
    assert summary["left_out"] == {"SCHEDULE_TOPIC_XXXX": 1}
    assert [(row["place"], row["outcome"]) for row in result.rows] == [
        (f"{path}, line 2", "MESSAGE_ILLEGAL"),
        (f"{path}, line 4", "NOT_SENT"),
    ]
    assert all(row["reason"] for row in result.rows)
    assert [message.body for message in stored(tmp_path / "m")] == [
        b"order 0", b"order 2", b"order 4"
    ]  # fmt: skip


async def test_bad_line_prevents_the_whole_import(tmp_path):
    """All rows are checked before the first is sent."""
    path = write(tmp_path / "orders.jsonl", [*orders(500), {"topic": "t", "body": 1}])
    async with open_master(tmp_path / "m") as master:
        with pytest.raises(ConfigError, match="line 501: body is not text"):
            await imported(path, master)
        assert master.max_offset == 0


def test_unreachable_master_raises_unreachable_error(tmp_path):
    """No process listens on the port."""
    with pytest.raises(UnreachableError):
        import_messages(write(tmp_path / "one.jsonl", orders(1)), ("127.0.0.1", 1))


async def test_broken_link_stops_the_import_and_reports_where_to_continue(tmp_path):
    """Two of six rows are answered; the other four are unknown, and may have been stored."""
    rows = list(read_rows(find_files(write(tmp_path / "orders.jsonl", orders(6)))))
    tally = ImportTally()
    async with scripted_node() as (node, address), trio.open_nursery() as nursery:

        async def answer_two():
            for place, request in enumerate(await node.receive(6)):
                if place == 2:
                    node.drop()
                    return
                fields = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "1"}
                await node.send(request.response(0, ext_fields=fields))

        nursery.start_soon(answer_two)
        await send_rows(address, iter(rows), tally)
    assert (tally.sent, tally.unknown, tally.certain) == (2, 4, 2)
    assert tally.statuses == {"PUT_OK": 2, "NO_ANSWER": 4}
    assert "unknown whether" in tally.stopped_because


def test_rows_before_the_first_unknown_one_are_certain():
    """A later answer does not hide that an earlier one is missing."""

    class Row:
        place, topic, queue_id = "here", "t", 0

        def __init__(self, number):
            self.number = number

    tally = ImportTally()
    tally.count(Row(1), "PUT_OK", is_stored=True, reason="")
    tally.count(Row(2), "MESSAGE_ILLEGAL", is_stored=False, reason="no")
    tally.count(Row(3), "NO_ANSWER", is_stored=None, reason="gone")
    tally.count(Row(4), "PUT_OK", is_stored=True, reason="")
    assert (tally.certain, tally.sent, tally.failed, tally.unknown) == (2, 2, 1, 1)

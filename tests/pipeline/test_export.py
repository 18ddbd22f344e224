"""Exports in three formats equal the walk record by record, and can be imported again."""

import json
import stat
import zlib

import pytest
import trio

pytest.importorskip("pyspark")

import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from hastore.errors import ConfigError, NotAStoreError
from hastore.pipeline.spark.errors import own_error
from hastore.pipeline.transfer.export_job import export
from hastore.pipeline.transfer.import_job import import_messages
from hastore.pipeline.transfer.import_rows import BROKER_TOPICS, COLUMNS, find_files, read_rows
from tests.support.nodes.reading import open_master
from tests.support.store.expected_rows import walked
from tests.support.store.log_builder import FIRST_MS, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
BODIES = [
    b"plain", b"", b"\xff\xfe\0", b"a\0b", b'"quoted", and \\ more', b"two\r\nlines\rthree\n",
    "ünïcödé \u2028 \U0001f600".encode(), b"  blanks around \t ", b"x" * 200_000, b"\\", b"'",
    b"{}", b"null", b"\xc3", b"0", b"=1+1", bytes(range(256)) * 3,
]  # fmt: skip


def hostile_store(path):
    """Write a store of bodies and properties that formats often get wrong."""
    log = LogBuilder(file_size=1 << 20)
    for number, body in enumerate(BODIES * 2):
        properties = (
            f'KEYS\x01k{number} "q"\x02TAGS\x01t,{number % 2}\x02UNIQ_KEY\x01U{number}\x02'
            f"é\n\x01wert\r\n\\\x02empty\x01\x02"
        )
        log.add(
            body,
            topic="orders" if number % 3 else "a topic, with blanks",
            queue_id=number % 4,
            properties_raw=properties.encode(),
            store_timestamp_ms=FIRST_MS + number * 1_000,
            flag=number,
        )
    return log.write(path)


def messages_of(path):
    """Return the messages of an export, as an import would send them."""
    return [row.message for row in read_rows(find_files(str(path)))]


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def is_complete(path):
    """Return whether the export is readable, and no unfinished file is left beside it."""
    return not [one for one in path.parent.iterdir() if "unfinished" in one.name] and (
        path.is_dir() or stat.S_IMODE(path.stat().st_mode) & 0o400
    )


def test_json_lines_equal_the_rows_of_a_golden_store(spark, golden, tmp_path):
    """All fields of all messages, in the order of the log; bodies that are text stay text."""
    path = tmp_path / "new" / "clean.jsonl"
    result = export(spark, str(golden / "clean"), str(path))
    rows = [row for row in walked(golden / "clean") if row["record_ok"]]
    lines = lines_of(path)
    assert is_complete(path)
    assert result.files == (str(path),)
    assert result.summary["messages"] == len(lines) == len(rows) > 50
    assert result.summary["bytes"] == sum(row["size"] for row in rows)
    assert set(lines[0]) == set(COLUMNS)
    for line, row, sent in zip(lines, rows, messages_of(path), strict=True):
        same = set(row) & set(line) - {"body"}
        assert {name: line[name] for name in same} == {name: row[name] for name in same}
        assert line["born_timestamp_ms"] == row["born_timestamp"]
        assert line["store_timestamp_ms"] == row["store_timestamp"]
        assert sent is None or sent.body == row["body"]


def test_three_formats_hold_the_same_messages(spark, tmp_path):
    """Bodies and properties have quotes, line ends, blanks, NULs and bytes."""
    store = hostile_store(tmp_path / "store")
    rows = walked(store)
    assert len(rows) == 2 * len(BODIES)
    for name in ("rows.jsonl", "rows.csv", "rows.parquet", "jsonl", "csv"):
        path = tmp_path / "out" / name
        result = export(spark, str(store), str(path), file_format=path.suffix[1:] or name)
        assert result.summary["messages"] == len(rows), name
        assert result.summary["bodies_as_base64"] == 8, name
        assert is_complete(path)
        assert path.is_file() == ("." in name)
        found = messages_of(path)
        for message, row in zip(found, rows, strict=True):
            assert message.body == row["body"], name
            assert (message.topic, message.queue_id) == (row["topic"], row["queue_id"])
            own = {key: row["properties"][key] for key in row["properties"] if key != "__CRC32#"}
            assert message.properties == own, name
            assert message.flag == row["flag"]
            assert message.born_timestamp_ms == row["born_timestamp"]
    table = pq.read_table(tmp_path / "out" / "rows.parquet")
    assert table.schema.names == [name for name in COLUMNS if name in table.schema.names]
    assert dict(table.column("properties")[0].as_py())["TAGS"] == "t,0"


def test_compressed_bodies_are_decoded_unless_raw_ones_are_asked_for(spark, tmp_path):
    """The flags agree, so an import sends what it reads; a body that stays compressed says why."""
    text = b"a body of some kilobytes " * 200
    packed, zlib_flag = zlib.compress(text), 1 | 3 << 8
    log = LogBuilder()
    for body, sys_flag in ((packed, zlib_flag), (packed[:-9], zlib_flag), (b"plain", 0)):
        log.add(body, sys_flag=sys_flag)
    store = str(log.write(tmp_path / "store"))
    decoded, raw = tmp_path / "decoded.jsonl", tmp_path / "raw.jsonl"
    assert export(spark, store, str(decoded)).summary["bodies_not_decoded"] == 1
    assert export(spark, store, str(raw), raw_bodies=True).summary["bodies_not_decoded"] == 0
    sent = [(message.body, message.sys_flag) for message in messages_of(decoded)]
    assert sent == [(text, 0), (packed[:-9], zlib_flag), (b"plain", 0)]
    faults = [line["body_fault"] for line in lines_of(decoded)]
    assert faults == [None, "its zlib data ends too early", None]
    sent = [(message.body, message.sys_flag) for message in messages_of(raw)]
    assert sent == [(packed, zlib_flag), (packed[:-9], zlib_flag), (b"plain", 0)]


def test_filters_select_messages(spark, tmp_path):
    """They are topic, queue, tag, times and offsets; an empty export is an empty file."""
    store = hostile_store(tmp_path / "store")
    rows = walked(store)

    def exported(name, **limits):
        export(spark, str(store), str(tmp_path / name), **limits)
        return [row["physic_offset"] for row in lines_of(tmp_path / name)]

    assert exported(
        "some.jsonl", topic="orders", queueId=1, tag="t,1", startTime=str(FIRST_MS + 5_000)
    ) == [
        row["physic_offset"]
        for number, row in enumerate(rows)
        if row["topic"] == "orders" and number % 4 == 1 and number >= 5
    ]
    assert exported("front.jsonl", endOffset=rows[3]["physic_offset"]) == [
        row["physic_offset"] for row in rows[:3]
    ]
    assert exported("none.jsonl", topic="no such topic") == []


def test_planted_records_are_exported_only_on_request(spark, tmp_path):
    """Behind damage only what consume queues name is a message; the rest is counted."""
    log = LogBuilder(file_size=1 << 16).fill(3).plant().fill(2)
    around, following = log.offsets[3:5]
    data = log.data[:around] + b"\xff" * 8 + log.data[around + 8 :]
    store = log.write(tmp_path / "D", data=data, queues=True)
    result = export(spark, str(store), str(tmp_path / "few.jsonl"))
    assert {line["topic"] for line in lines_of(tmp_path / "few.jsonl")} == {"orders"}
    names = ("messages", "damaged", "unconfirmed_records", "set_aside_bytes")
    assert [result.summary[name] for name in names] == [5, 1, 3, following - around]
    result = export(spark, str(store), str(tmp_path / "all.jsonl"), unconfirmed=True)
    rows = [line for line in lines_of(tmp_path / "all.jsonl") if line["topic"] == "secret"]
    assert [row["physic_offset"] for row in rows] == log.planted
    assert (result.summary["messages"], result.summary["unconfirmed_records"]) == (8, 3)


def test_damaged_messages_are_left_out_and_counted(spark, tmp_path):
    """One flipped byte costs one message, and the summary counts it."""
    log = LogBuilder().fill(20)
    store = log.write(tmp_path / "store", data=log.flipped(log.offsets[7] + 100))
    result = export(spark, str(store), str(tmp_path / "rest.csv"))
    assert (result.summary["messages"], result.summary["damaged"]) == (19, 1)
    assert len(messages_of(tmp_path / "rest.csv")) == 19


def content(rows):
    """Return what must survive: by queue and in order, without offsets, store times and hosts."""
    queues = {}
    for row in rows:
        # Timers, and messages of transactions that were never committed.
        if row["topic"] in BROKER_TOPICS or row["sys_flag"] & 12 not in {0, 8}:
            continue
        own = {
            name: value
            for name, value in row["properties"].items()
            # A message without a UNIQ_KEY gets one when it is sent, and each its broker's CLUSTER.
            # A committed one is a plain one.
            if name not in {"__CRC32#", "CLUSTER", "UNIQ_KEY", "TRAN_MSG"}
        }
        queues.setdefault((row["topic"], row["queue_id"]), []).append(
            {
                **{name: row[name] for name in ("body", "body_encoding", "tags", "keys", "flag")},
                "born_timestamp_ms": row["born_timestamp_ms"],
                "reconsume_times": row["reconsume_times"],
                "unique": row["properties"].get("UNIQ_KEY"),
                "properties": own,
            }
        )
    return queues


async def test_export_import_export_round_trips(spark, golden, tmp_path):
    """A golden store goes through a fresh master; each queue has the same messages in order."""
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    in_thread = trio.to_thread.run_sync
    await in_thread(lambda: export(spark, str(golden / "clean"), str(first)))
    async with open_master(tmp_path / "m") as master:
        result = await in_thread(lambda: import_messages(str(first), master.address))
        # The master is running, so its log is read while it is in use.
        await in_thread(lambda: export(spark, str(tmp_path / "m"), str(second)))
    before, after = content(lines_of(first)), content(lines_of(second))
    # RocketMQ's store accepts a topic that its server refuses.
    too_long = [queue for queue in before if len(queue[0]) > 127]
    assert sum(len(before.pop(queue)) for queue in too_long) == result.summary["failed"] == 1
    assert list(result.summary["queues_refused"]) == [too_long[0][0]]
    assert result.summary["sent"] == sum(len(rows) for rows in before.values()) > 100
    for queue in before.values():
        for row in queue:
            row["unique"] = row["unique"] or "any"
    for queue, rows in after.items():
        for row, old in zip(rows, before[queue], strict=True):
            if old["unique"] == "any":
                row["unique"] = "any"
    assert after == before


def test_bad_input_raises_one_clear_error(spark, tmp_path):
    """Nothing is written, and an existing file stays as it was."""
    store = str(LogBuilder().fill(3).write(tmp_path / "store"))
    there = tmp_path / "there.jsonl"
    there.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        export(spark, store, str(there))
    assert there.read_text() == "mine"
    with pytest.raises(ConfigError, match="does not say which format"):
        export(spark, store, str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="no format 'xml'"):
        export(spark, store, str(tmp_path / "out"), file_format="xml")
    with pytest.raises(PySparkException) as caught:
        export(spark, str(tmp_path / "nothing"), str(tmp_path / "out.jsonl"))
    assert isinstance(own_error(caught.value), NotAStoreError)
    with pytest.raises(ConfigError, match="startTime: 'yesterday'"):
        export(spark, store, str(tmp_path / "out.jsonl"), startTime="yesterday")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "there.jsonl"]

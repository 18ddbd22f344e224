"""A replica of a RocketMQ master whose log holds all kinds of records: compressed, transactional,
inner batches (BatchCQ), V2, IPv6.

The store's own encoder makes the records as RocketMQ 4.9.8 and 5 write them: properties without a
trailing separator, no ``__CRC32#``, queue offset 0 for records that are in no queue.
"""

from __future__ import annotations

import json
import shutil
import zlib

import attrs
import pytest

import hastore
from hastore.client.received_messages import read_all_in_pieces
from hastore.status import BrokerRole
from hastore.store.record.layout import MESSAGE_MAGIC_CODE_V2
from hastore.store.record.message_codec import decode
from hastore.wire.ha_frames import encode_header
from hastore.wire.pieces import at_once
from tests.support.commands.in_process import call
from tests.support.nodes.harness import (
    FILE_SIZE,
    log_bytes,
    master_config,
    raw_master,
    read_report,
    slave_config,
)
from tests.support.store.log_builder import LogBuilder
from tests.support.store.store_reads import get_message
from tests.support.waiting import eventually

COMPRESSED, PREPARED, COMMIT, ROLLBACK, IPV6, UNWRAP, INNER_BATCH = 1, 4, 8, 12, 0x30, 0x40, 0x80
LZ4, ZSTD, ZLIB = 0x100, 0x200, 0x300
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LONG_TOPIC = "t" * 200
TEXT = b"a body that was large before it was compressed " * 40


def properties(**pairs):
    """Encode properties as 4.9.3 to 5.1.4 do: without a trailing separator."""
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs.items()).encode()


@attrs.define
class StockLog:
    """A log, and the units that its consume queues must hold."""

    log: LogBuilder = attrs.field(factory=lambda: LogBuilder(file_size=FILE_SIZE, prop_crc=False))
    units: dict[tuple[str, int], list[tuple[int, int]]] = attrs.field(factory=dict)
    next_offsets: dict[tuple[str, int], int] = attrs.field(factory=dict)

    def add(self, topic="orders", queue_id=0, body=b"plain", *, sys_flag=0, takes=1, **pairs):
        """Append a record that takes ``takes`` offsets of its queue."""
        queue = topic, queue_id
        queue_offset = self.next_offsets.get(queue, 0) if takes else 0
        self.log.add(
            body,
            topic=topic,
            queue_id=queue_id,
            sys_flag=sys_flag,
            queue_offset=queue_offset,
            properties_raw=properties(**pairs),
            **({"magic": MESSAGE_MAGIC_CODE_V2} if len(topic) > 127 else {}),
            **({"born_host": ("::1", 1), "store_host": ("fe80::1", 2)} if sys_flag & IPV6 else {}),
        )
        start = self.log.offsets[-1]
        if takes:
            self.next_offsets[queue] = queue_offset + takes
        if takes == 1 and not sys_flag & INNER_BATCH:
            self.units.setdefault(queue, []).append((start, self.log.end - start))

    def add_each_kind(self, number):
        """Append one record of each kind."""
        key = f"n{number}"
        self.add(KEYS=f"plain-{key}", TAGS="TagA")
        self.add(body=zlib.compress(TEXT), sys_flag=COMPRESSED, KEYS=f"zipped-{key}")
        self.add(body=zlib.compress(TEXT), sys_flag=COMPRESSED | ZLIB)
        self.add(body=b"\x04\x22\x4d\x18 not really", sys_flag=COMPRESSED | LZ4)
        self.add(body=b"\x28\xb5\x2f\xfd not really", sys_flag=COMPRESSED | ZSTD)
        self.add(HALF, body=TEXT, TRAN_MSG="true", REAL_TOPIC="orders", PGROUP="g")
        self.add(sys_flag=PREPARED, takes=0, KEYS=f"half-{key}", TRAN_MSG="true")
        self.add(sys_flag=COMMIT | COMPRESSED, body=zlib.compress(TEXT), KEYS=f"done-{key}")
        self.add(sys_flag=ROLLBACK, takes=0, KEYS=f"gone-{key}")
        self.add(OP, body=b"7,", TAGS="d")
        self.add(
            "batches", 1, b"x" * 300, sys_flag=INNER_BATCH | UNWRAP, takes=3, INNER_NUM=3,
            INNER_BASE=3 * number,
        )  # fmt: skip
        self.add(LONG_TOPIC, 2, KEYS=f"long-{key}")
        self.add(queue_id=3, sys_flag=IPV6)


def stock_log(count=60):
    made = StockLog()
    for number in range(count):
        made.add_each_kind(number)
    assert len(made.log.blanks) >= 2
    return made


async def send(sock, data, start, end, *, size=1_777):
    """Send part of a log in frames that cut records anywhere but never cross a file's end."""
    while start < end:
        stop = min(start + size, end, start - start % FILE_SIZE + FILE_SIZE)
        await sock.send(encode_header(start, stop - start) + data[start:stop])
        start = stop


def replica_config(directory, address):
    return slave_config(directory, address, listen=("127.0.0.1", 0))


async def copied(slave, made):
    """Wait until the slave has the whole log and has dispatched it."""
    await eventually(lambda: slave.max_offset == made.log.end)
    await eventually(lambda: slave.reput_message_service.committed_offset == made.log.end)


def check_queues(node, made):
    """Check that each queue holds what RocketMQ would put into it, in log order."""
    store = node.message_store
    for (topic, queue_id), units in made.units.items():
        limits = {"max_count": 10_000, "max_size": 1 << 30}
        assert get_message(store, topic, queue_id, 0, **limits).ranges == tuple(units), topic
        assert store.max_offset_in_queue(topic, queue_id) == len(units)
    assert store.max_offset_in_queue("batches", 1) == 0
    for key, number in (("plain", 1), ("zipped", 1), ("half", 1), ("done", 1), ("gone", 0)):
        assert len(store.query_message("orders", f"{key}-n7")) == number, key
    assert len(store.query_message(LONG_TOPIC, "long-n7")) == 1
    assert node.status().dispatch_fault is None
    assert node.status().dispatch_behind_bytes == 0


async def replicate(tmp_path, made, then):
    """Let a slave copy a whole log, over a link that breaks inside an inner batch."""
    data, end = bytes(made.log.data), made.log.end
    inner = bytes(data).index(b"x" * 300) + 100
    async with raw_master() as master:
        async with hastore.open_slave(replica_config(tmp_path / "s", master.address)) as slave:
            sock = await master.accept()
            assert await read_report(sock) == 1
            await send(sock, data, 1, inner)
            await eventually(lambda: slave.max_offset == inner)
            sock.close()
            sock = await master.accept()
            await send(sock, data, await read_report(sock), end)
            await copied(slave, made)
            await then(slave)
            assert slave.status().master_link.reason is None
            sock.close()


async def test_all_kinds_of_records_are_copied_and_served(tmp_path):
    """The logs are equal; prepared, rolled-back and inner-batch records are in no queue."""
    made = stock_log()

    async def then(slave):
        check_queues(slave, made)
        result = get_message(slave.message_store, "orders", 0, 0, max_count=6)
        data = bytes(made.log.data)
        records = b"".join(data[at : at + size] for at, size in result.ranges)
        bodies = [message.body for message in at_once(read_all_in_pieces(records))]
        assert bodies[1] == bodies[2] == bodies[5] == TEXT
        address = f"127.0.0.1:{slave.address[1]}"
        code, out, err = await call(
            "get", "--key", "zipped-n7", "-t", "orders", "--addr", address, "-o", "jsonl"
        )
        assert code == 0, err
        assert json.loads(out)["body"] == TEXT.decode()

    await replicate(tmp_path, made, then)
    assert log_bytes(tmp_path / "s", made.log.end) == bytes(made.log.data)


async def test_the_log_commands_read_a_replica_of_all_kinds(tmp_path):
    """``log verify`` finds no damage, ``log cat`` prints each record."""
    made = stock_log(40)

    async def then(_slave):
        code, out, _ = await call("log", "verify", tmp_path / "s")
        assert code == 0, out

    await replicate(tmp_path, made, then)
    code, out, err = await call("log", "verify", tmp_path / "s")
    assert code == 0, out + err
    code, out, err = await call("log", "cat", tmp_path / "s", "-o", "jsonl")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["offset"] for row in rows] == made.log.offsets
    assert sum(row["topic"] == "batches" for row in rows) == 40


@pytest.mark.parametrize("ends", ["stopped", "killed"])
async def test_a_replica_of_all_kinds_can_be_promoted(tmp_path, ends):
    """Queue offsets continue as in RocketMQ: an inner batch takes as many as it has messages."""
    made = stock_log()

    async def then(_slave):
        # With its abort file, as after a kill; a table that is being written is not there yet.
        ignored = shutil.ignore_patterns("*.tmp")
        shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=ignored)

    await replicate(tmp_path, made, then)
    directory = tmp_path / ("s" if ends == "stopped" else "killed")
    config = master_config(directory, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as promoted:
        reput = promoted.reput_message_service
        await eventually(lambda: reput.committed_offset == made.log.end)
        check_queues(promoted, made)
        assert promoted.max_offset == made.log.end
        for (topic, queue_id), next_offset in made.next_offsets.items():
            if topic == LONG_TOPIC:
                continue  # copied and served, but refused from producers
            result = await promoted.put(hastore.Message(topic, b"new", queue_id=queue_id))
            assert result.status.stored, result
            assert (topic, result.queue_offset) == (topic, next_offset)
        config = slave_config(tmp_path / "new", promoted.ha_address)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.max_offset == promoted.max_offset)
            assert slave.status().master_link.reason is None
        end = promoted.max_offset
    assert log_bytes(tmp_path / "new", end) == log_bytes(directory, end)


def test_records_of_this_file_are_as_rocketmq_writes_them():
    """The tests above rely on these flags and offsets."""
    made = stock_log(40)
    data = memoryview(made.log.data)
    kinds = [decode(data, at) for at in made.log.offsets[:13]]
    assert [each.sys_flag & 0xC for each in kinds][6:9] == [PREPARED, COMMIT, ROLLBACK]
    assert [each.queue_offset for each in kinds][6:9] == [0, 5, 0]
    assert kinds[10].properties == {"INNER_NUM": "3", "INNER_BASE": "0"}
    assert kinds[11].magic == MESSAGE_MAGIC_CODE_V2
    assert kinds[12].store_host == ("fe80::1", 2)

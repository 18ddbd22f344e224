"""Producer and administrator against real masters and slaves, over loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
import trio

import hastore
from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.client.producer import Producer
from hastore.config import KIB, MIB, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import RequestFailedError
from hastore.message import Message, StoredMessage
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.record import message_codec
from tests.patience import PROCESS_WITHIN_S, WITHIN_S
from tests.support.nodes.configs import ANY_PORT

if TYPE_CHECKING:
    from pathlib import Path


def master_config(data_dir: Path, role: BrokerRole, **remoting: int) -> MasterConfig:
    return MasterConfig(
        store=StoreConfig(
            data_dir=str(data_dir), mapped_file_size=16 * MIB, max_message_size=64 * KIB
        ),
        role=role,
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        remoting=RemotingConfig(**remoting),
    )


def record_at(data_dir: Path, physic_offset: int) -> StoredMessage:
    file = real_env().disk.open_file(str(data_dir / "commitlog" / f"{0:020d}"), writable=False)
    data = file.pread(64 * KIB, physic_offset)
    file.close()
    return message_codec.decode(data)


async def test_the_record_is_at_the_offset_in_the_answer(tmp_path):
    """Its fields are those of the message that was sent, in a batch too."""
    async with (
        hastore.open_master(master_config(tmp_path, BrokerRole.ASYNC_MASTER)) as master,
        Producer.connect(master.address) as producer,
    ):
        await producer.send(Message("orders", b"first"), queue_id=1)
        result = await producer.send(
            Message("orders", b"hello", properties={"KEYS": "ü", "TAGS": "t"}, flag=7), queue_id=3
        )
        messages = [Message("orders", b"%d" % n) for n in range(3)]
        batch = await producer.send_batch(messages, queue_id=6)
    assert result.status is PutMessageStatus.PUT_OK
    stored = record_at(tmp_path, result.physic_offset)
    assert (stored.topic, stored.body, stored.queue_id, stored.flag) == ("orders", b"hello", 3, 7)
    assert stored.queue_offset == result.queue_offset
    assert stored.born_host[0] == "127.0.0.1"
    properties = dict(stored.properties)
    properties.pop("__CRC32#", None)
    assert properties == {
        "KEYS": "ü",
        "TAGS": "t",
        "UNIQ_KEY": result.unique_key,
        "CLUSTER": "DefaultCluster",
    }
    assert result.message_id == message_codec.message_id(stored.store_host, result.physic_offset)
    offsets = [int(one[-16:], 16) for one in batch.message_id.split(",")]
    assert [record_at(tmp_path, offset).body for offset in offsets] == [b"0", b"1", b"2"]
    assert [record_at(tmp_path, offset).queue_offset for offset in offsets] == [0, 1, 2]


async def test_a_sync_master_without_slaves_answers_slave_not_available(tmp_path):
    """The message is stored, and the answer says where and why; WAIT=false gets PUT_OK."""
    async with (
        hastore.open_master(master_config(tmp_path, BrokerRole.SYNC_MASTER)) as master,
        Producer.connect(master.address) as producer,
    ):
        alone = await producer.send(Message("T", b"1"))
        unasked = await producer.send(Message("T", b"2", properties={"WAIT": "false"}))
    assert alone.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
    assert "slave" in alone.reason
    assert record_at(tmp_path, alone.physic_offset).body == b"1"
    assert unasked.ok


async def test_a_sync_master_with_a_slave_answers_ok(tmp_path):
    """A thousand pipelined messages are each PUT_OK once the slave has them."""
    config = master_config(tmp_path / "m", BrokerRole.SYNC_MASTER)
    async with hastore.open_master(config) as master:
        slave_config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "s"), mapped_file_size=16 * MIB),
            master=master.ha_address,
        )
        async with (
            hastore.open_slave(slave_config) as slave,
            Producer.connect(master.address) as producer,
        ):
            with trio.fail_after(WITHIN_S):
                while not (await producer.send(Message("T", b""))).ok:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            pending = [await producer.submit(Message("T", b"%d" % n)) for n in range(1000)]
            results = [await one.wait() for one in pending]
            assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
            offsets = [result.physic_offset for result in results]
            assert offsets == sorted(offsets)
            assert slave.max_offset == master.max_offset


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (Message("a b", b""), PutMessageStatus.MESSAGE_ILLEGAL),
        (Message("x" * 128, b""), PutMessageStatus.MESSAGE_ILLEGAL),
        (Message("T", bytes(65 * KIB)), PutMessageStatus.MESSAGE_ILLEGAL),
        (
            Message("T", b"", properties={"k": "v" * 33_000}),
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        ),
    ],
    ids=["blank in topic", "long topic", "large body", "large properties"],
)
async def test_a_refused_message_has_a_status_and_a_reason(tmp_path, message, status):
    """It has no offset, and the next message is accepted."""
    async with (
        hastore.open_master(master_config(tmp_path, BrokerRole.ASYNC_MASTER)) as master,
        Producer.connect(master.address) as producer,
    ):
        result = await producer.send(message)
        assert result.status is status
        assert result.reason
        assert result.physic_offset is None
        assert (await producer.send(Message("T", b""))).ok


async def test_both_nodes_report_their_status_and_a_slave_refuses_producers(tmp_path):
    """907 and 28 are answered by master and slave."""
    config = master_config(tmp_path / "m", BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        slave_config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "s"), mapped_file_size=16 * MIB),
            master=master.ha_address,
        )
        async with hastore.open_slave(slave_config) as slave:
            for node, is_master in [(master, True), (slave, False)]:
                async with AdminClient.connect(node.address) as admin:
                    info = await admin.ha_status()
                    table = await admin.runtime_info()
                status = NodeStatus.from_dict(info["hastore"])
                assert info["master"] is is_master
                assert status.role == table["brokerRole"]
                assert status.address == f"127.0.0.1:{node.address[1]}"
            with pytest.raises(RequestFailedError, match="is a slave"):
                async with Producer.connect(slave.address):
                    pass


# -- the stock C++ client ------------------------------------------------------------------------

STOCK_CLIENT = textwrap.dedent(
    """
    import sys
    from rocketmq.client import Message, Producer

    producer = Producer("stock", timeout=60_000)
    producer.set_namesrv_addr(sys.argv[1])
    producer.start()

    def message(body):
        made = Message("StockTopic")
        made.set_keys("k-" + body)
        made.set_tags("tag")
        made.set_body(body)
        return made

    def attempt(send, what):
        try:
            result = send(what)
            print(int(result.status), result.msg_id)
        except Exception as error:
            print(type(error).__name__)

    for number in range(3):
        attempt(producer.send_sync, message("single %d" % number))
    if sys.argv[2] == "all":
        attempt(producer.send_batch, [message("batch %d" % number) for number in range(3)])
    sys.stdout.flush()
    producer.shutdown()
    """
)


@pytest.fixture(scope="session")
def stock_python() -> str:
    """An interpreter that has Apache's C++ client (PyPI: rocketmq), to run as a process."""
    found = subprocess.run(
        [sys.executable, "-c", "import rocketmq.client"], capture_output=True, check=False
    )
    if found.returncode != 0:
        reason = found.stderr.decode(errors="replace").strip().splitlines()[-1]
        pytest.skip(f"the stock client cannot be imported here: {reason}")
    return sys.executable


async def run_stock_client(python: str, address: tuple[str, int], what: str, home: Path):
    with trio.fail_after(PROCESS_WITHIN_S):
        done = await trio.run_process(
            [python, "-c", STOCK_CLIENT, f"{address[0]}:{address[1]}", what],
            capture_stdout=True,
            env={**os.environ, "HOME": str(home)},  # it writes its log there
        )
    return done.stdout.decode().splitlines()


async def test_the_stock_client_sends_to_a_master_that_is_its_name_server(stock_python, tmp_path):
    """Apache's C++ client finds the route, sends messages and a batch, and reads the answers."""
    data_dir = tmp_path / "m"
    async with hastore.open_master(master_config(data_dir, BrokerRole.ASYNC_MASTER)) as master:
        lines = await run_stock_client(stock_python, master.address, "all", tmp_path)
        status = master.status()
    assert [line.split()[0] for line in lines] == ["0", "0", "0", "0"], lines
    assert (status.put_counts["PUT_OK"], status.put_batch_counts["PUT_OK"]) == (6, 1)
    stored = []
    offset = 0
    while offset < master.max_offset:
        stored.append(record_at(data_dir, offset))
        offset = stored[-1].next_offset
    bodies = [b"single %d" % n for n in range(3)] + [b"batch %d" % n for n in range(3)]
    assert [record.body for record in stored] == bodies
    assert all(record.properties["TAGS"] == "tag" for record in stored)
    keys = [record.properties["UNIQ_KEY"] for record in stored[:3]]
    assert keys == [line.split()[1] for line in lines[:3]], "its msg_id is the UNIQ_KEY"


async def test_the_stock_client_stores_each_message_thrice_without_slaves(stock_python, tmp_path):
    """On SLAVE_NOT_AVAILABLE Apache's C++ client sends twice more, each time with a new key."""
    config = master_config(tmp_path / "m", BrokerRole.SYNC_MASTER)
    async with hastore.open_master(config) as master:
        lines = await run_stock_client(stock_python, master.address, "single", tmp_path)
        counts = master.status().put_counts
        max_offset = master.max_offset
    assert lines == ["ProducerSendSyncFailed"] * 3
    assert counts["SLAVE_NOT_AVAILABLE"] == 9
    stored = []
    offset = 0
    while offset < max_offset:
        stored.append(record_at(tmp_path / "m", offset))
        offset = stored[-1].next_offset
    assert [record.body for record in stored] == [b"single %d" % (n // 3) for n in range(9)]
    assert len({record.properties["UNIQ_KEY"] for record in stored}) == 9, "one for each attempt"

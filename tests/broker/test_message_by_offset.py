"""Messages that a request names by their offset (33, 36), over real sockets: who gets what."""

from __future__ import annotations

import attrs
import pytest
import trio

import hastore
from hastore.broker.port.remoting_server import RemotingServer
from hastore.broker.pulls import message_by_offset
from hastore.broker.pulls.message_by_offset import NOT_FOUND
from hastore.config import MIB, AccessConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.store.commit_log import CommitLog
from hastore.store.record import layout, message_codec
from hastore.store.record.layout import HEAD_READ_SIZE, TEXTS_SIZE_MAX
from hastore.topic import SCHEDULE_TOPIC
from hastore.wire.remoting_command import RemotingCommand
from tests.patience import PROCESS_WITHIN_S, WITHIN_S
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    POOR_KEY,
    USER_KEY,
    signed,
    write_private,
)
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import dispatched, master_config, open_master, open_slave, put
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import eventually

FILE_SIZE = 4 * MIB
LARGE = 200_000
DELAYED = b"DELAY\x0118\x02REAL_QID\x010\x02REAL_TOPIC\x01%s\x02"


def open_with_keys(tmp_path, data_dir="data"):
    """Run a master that knows the keys of ACCOUNTS: the user reads orders and group billing."""
    access = AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS))
    config = attrs.evolve(master_config(tmp_path / data_dir), access=access)
    return hastore.open_master(config)


def view(offset, key=None):
    return signed(RemotingCommand(code=33, ext_fields={"offset": str(offset)}), key)


def send_back(offset, key=None):
    fields = {"group": "billing", "offset": str(offset), "delayLevel": "-1"}
    return signed(RemotingCommand(code=36, ext_fields=fields), key)


def said(response):
    return response.code, response.remark, response.ext_fields, response.body


REFUSED = (1, NOT_FOUND, {}, b"")


class EveryKind:
    """A log with messages of every kind; ``at`` are their offsets by name."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}
        self.log = LogBuilder(file_size=FILE_SIZE)
        self.add("own", b"own")
        self.add("foreign", topic="other")
        self.add("foreign, large", bytes(LARGE), topic="other")
        self.add("foreign, delayed", topic=SCHEDULE_TOPIC, queue_id=17, real=b"other")
        self.add("own, delayed", topic=SCHEDULE_TOPIC, queue_id=17, real=b"orders")
        self.add("retry", topic="%RETRY%billing")
        for name, sys_flag in (
            ("half", layout.TRANSACTION_PREPARED_TYPE),
            ("rollback", layout.TRANSACTION_ROLLBACK_TYPE),
            ("batch", layout.INNER_BATCH_FLAG),
        ):
            self.add(name, queue_id=1, queue_offset=0, sys_flag=sys_flag)
        self.add("expired queue file", queue_id=2)
        self.add("deleted topic", topic="orders", queue_id=3)
        forged_at = self.log.end + layout.BODY_POSITIONS[0]
        forged = LogBuilder(min_offset=forged_at, prop_crc=False).add(b"forged")
        self.add("message around", bytes(forged.data))
        self.at["forged"] = forged_at
        assert message_codec.decode(self.log.data, forged_at).physic_offset == forged_at
        self.at |= {
            "inside": 4, "end": self.log.end, "behind": 1 << 50, "negative": -1,
            "before it": self.at["foreign"] - 1,
        }  # fmt: skip

    def add(self, name, body=b"body", *, real=None, **fields):
        self.at[name] = self.log.end
        if real is not None:
            fields["properties_raw"] = DELAYED % real
        # A delayed one is due in two hours.
        self.log.add(body, store_timestamp_ms=real_env().wall_clock.now_ms(), **fields)

    async def dispatched_by(self, master):
        await dispatched(master, self.log.end)
        queues = master.message_store.consume_queues
        expired = queues.find("orders", 2)
        expired.min_offset = expired.max_offset
        del queues._queues["orders", 3]


MESSAGES = {
    "own", "foreign", "foreign, large", "foreign, delayed", "own, delayed", "retry",
    "message around",
}  # fmt: skip
OWN = {"own", "own, delayed", "retry", "message around"}


async def test_a_key_gets_the_messages_of_its_topics_and_one_answer_otherwise(tmp_path):
    """A request by offset gets what has a unit; nothing tells why it gets no message."""
    every = EveryKind()
    every.log.write(tmp_path / "data")
    async with open_with_keys(tmp_path) as master, raw_client(master.address) as client:
        await every.dispatched_by(master)
        for key, found in ((ADMIN_KEY, MESSAGES), (USER_KEY, OWN), (POOR_KEY, set())):
            for name, offset in every.at.items():
                response = await client.ask(view(offset, key))
                if name in found:
                    assert response.code == 0, (key.name, name)
                    assert message_codec.decode(response.body).physic_offset == offset
                else:
                    assert said(response) == REFUSED, (key.name, name)
        end = master.max_offset
        for name in every.at.keys() - OWN:
            assert said(await client.ask(send_back(every.at[name], USER_KEY))) == REFUSED, name
        assert master.max_offset == end
        assert "billing" not in await admin_groups(client)
        assert (await client.ask(send_back(every.at["retry"], USER_KEY))).code == 0


async def admin_groups(client):
    answer = await client.ask(signed(RemotingCommand(code=201), ADMIN_KEY))
    return answer.body.decode()


async def test_a_node_without_keys_answers_what_has_a_unit_too(tmp_path):
    """Whoever asks: what a producer wrote into a body is no message."""
    every = EveryKind()
    every.log.write(tmp_path)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await every.dispatched_by(master)
        for name, offset in every.at.items():
            response = await client.ask(view(offset))
            assert (response.code == 0) is (name in MESSAGES), name


async def test_a_stored_forgery_is_not_answered(tmp_path):
    """The attack as it was found: a message's body has a record of the reader's own topic."""
    async with open_with_keys(tmp_path) as master, raw_client(master.address) as client:
        fake = master.max_offset + layout.BODY_POSITIONS[0]
        forged = bytes(LogBuilder(min_offset=fake, prop_crc=False).add(b"forged").data)
        sent = await client.ask(signed(send_command(topic="orders", body=forged), USER_KEY))
        assert sent.code == 0
        await dispatched(master, master.max_offset)
        assert master.message_store.record_at(fake) == forged
        for request in (view(fake, USER_KEY), send_back(fake, USER_KEY), view(fake, ADMIN_KEY)):
            assert said(await client.ask(request)) == REFUSED


async def test_every_refusal_reads_as_much(tmp_path, monkeypatch):
    """Two reads in the log, and no body; a key that may read no topic causes none."""
    every = EveryKind()
    every.log.write(tmp_path / "data")
    async with open_with_keys(tmp_path) as master, raw_client(master.address) as client:
        await every.dispatched_by(master)
        sizes = []
        read = CommitLog.read
        monkeypatch.setattr(
            CommitLog, "read", lambda log, at, size: sizes.append(size) or read(log, at, size)
        )
        inside = {name: at for name, at in every.at.items() if 0 <= at < master.max_offset}
        for name in inside.keys() - OWN:
            sizes.clear()
            assert said(await client.ask(view(every.at[name], USER_KEY))) == REFUSED
            assert len(sizes) == 2, name
            assert sizes[0] == HEAD_READ_SIZE
            assert sizes[1] <= TEXTS_SIZE_MAX
        sizes.clear()
        for offset in every.at.values():
            assert said(await client.ask(view(offset, POOR_KEY))) == REFUSED
        assert not sizes


async def test_a_query_by_key_answers_what_has_a_unit(tmp_path):
    """The index keeps the keys of unfinished transactions and of deleted topics."""
    every = EveryKind()
    every.log.write(tmp_path)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await every.dispatched_by(master)
        request = RemotingCommand(code=12, ext_fields={"topic": "orders", "key": "k"})
        body = (await client.ask(request)).body
        found = []
        while body:
            record = message_codec.decode(body)
            found.append(record.physic_offset)
            body = body[record.total_size :]
    assert found == [every.at["message around"], every.at["own"]]


# -- messages that are not dispatched yet --------------------------------------------------------


def offset_of(response):
    """Return the offset in a send's message id."""
    assert response.code == 0
    return int(response.ext_fields["msgId"][16:], 16)


async def test_a_message_is_found_as_soon_as_it_is_stored(tmp_path):
    """Each of 200, and one that is sent back at once."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        for number in range(200):
            offset = offset_of(await client.ask(send_command(topic="orders")))
            response = await client.ask(view(offset))
            assert response.code == 0, number
        offset = offset_of(await client.ask(send_command(topic="orders")))
        assert (await client.ask(send_back(offset))).code == 0


async def test_many_clients_find_what_they_have_just_stored(tmp_path):
    """All of them at the same time."""

    async def store_and_view(address):
        async with raw_client(address) as client:
            for _ in range(10):
                offset = offset_of(await client.ask(send_command(topic="orders")))
                assert (await client.ask(view(offset))).code == 0

    async with open_master(tmp_path) as master, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(store_and_view, master.address)


@pytest.fixture
def patient(monkeypatch):
    """A node that waits for dispatch for as long as a test may last."""
    monkeypatch.setattr(message_by_offset, "WAIT_S", PROCESS_WITHIN_S)


class Held:
    """A node whose dispatch stands still until ``release``."""

    def __init__(self, node) -> None:
        self.reput = node.reput_message_service
        self.confirm_offset = self.reput.confirm_offset
        self.reput.confirm_offset = lambda: self.reput.committed_offset

    def release(self):
        self.reput.confirm_offset = self.confirm_offset
        self.reput.wakeup()


def waiting_of(node_server):
    return len(node_server._processors.by_offset._waiting)


@pytest.fixture
def servers(monkeypatch):
    """The remoting servers that have begun to serve."""
    made = []
    run = RemotingServer.run

    async def recorded(server, **options):
        made.append(server)
        await run(server, **options)

    monkeypatch.setattr(RemotingServer, "run", recorded)
    return made


async def test_a_request_waits_for_dispatch(tmp_path, patient, servers):
    """The record is answered once its unit is there, to a slave's clients too."""
    async with (
        open_master(tmp_path / "m") as master,
        open_slave(tmp_path / "s", master) as slave,
        raw_client(slave.address) as client,
    ):
        held = Held(slave)
        result = await master.put(Message("orders", b"late"))
        await eventually(lambda: slave.commit_log.max_offset == master.max_offset)
        await client.send(view(result.physic_offset))
        await eventually(lambda: waiting_of(servers[-1]) == 1)
        held.release()
        with trio.fail_after(WITHIN_S):
            response = await client.receive()
        assert message_codec.decode(response.body).body == b"late"
        assert waiting_of(servers[-1]) == 0


async def test_a_wait_ends_without_dispatch(tmp_path, monkeypatch):
    """Then the answer is the same as for every other offset without a message."""
    monkeypatch.setattr(message_by_offset, "WAIT_S", 0.05)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        Held(master)
        result = await master.put(Message("orders", b"x"))
        for offset in (result.physic_offset, result.physic_offset + 1):
            for request in (view(offset), send_back(offset)):
                assert said(await client.ask(request)) == REFUSED


async def test_a_record_without_a_unit_ends_the_wait_too(tmp_path, patient, servers):
    """Dispatch has passed it: no queue has grown."""
    half = Message("orders", b"x", sys_flag=layout.TRANSACTION_PREPARED_TYPE)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        held = Held(master)
        result = await master.put(half)
        await client.send(view(result.physic_offset))
        await eventually(lambda: waiting_of(servers[-1]) == 1)
        held.release()
        with trio.fail_after(WITHIN_S):
            assert said(await client.receive()) == REFUSED


async def test_nobody_waits_for_what_is_not_stored_or_not_his_to_read(tmp_path, patient, servers):
    """Beyond the log's end, and with a key that may read no topic."""
    async with open_with_keys(tmp_path) as master, raw_client(master.address) as client:
        Held(master)
        result = await master.put(Message("orders", b"x"))
        with trio.fail_after(WITHIN_S):
            for offset in (result.next_offset, result.next_offset + 1, 1 << 50, -1):
                assert said(await client.ask(view(offset, USER_KEY))) == REFUSED
                assert said(await client.ask(send_back(offset, USER_KEY))) == REFUSED
            assert said(await client.ask(view(result.physic_offset, POOR_KEY))) == REFUSED
        # What a key with a topic asks for waits, whatever is there.
        await client.send(view(result.physic_offset + 1, USER_KEY))
        await eventually(lambda: waiting_of(servers[-1]) == 1)


async def test_a_key_that_goes_while_its_request_waits_gets_nothing(tmp_path, patient, servers):
    """The permissions of the time of the answer count."""
    async with open_with_keys(tmp_path) as master, raw_client(master.address) as client:
        held = Held(master)
        result = await master.put(Message("orders", b"x"))
        await client.send(view(result.physic_offset, USER_KEY))
        await eventually(lambda: waiting_of(servers[-1]) == 1)
        write_private(tmp_path / "acl.yml", ACCOUNTS.replace("orders=PUB|SUB", "orders=PUB"))
        assert await master.access.reload()
        held.release()
        with trio.fail_after(WITHIN_S):
            assert said(await client.receive()) == REFUSED


async def test_waiting_requests_are_bounded(tmp_path, patient, servers, monkeypatch):
    """Those above the bound are refused at once, and other requests are answered meanwhile."""
    monkeypatch.setattr(message_by_offset, "WAITING_MAX", 2)
    async with (
        open_master(tmp_path, output_size_total_max=8 * MIB) as master,
        raw_client(master.address) as one,
        raw_client(master.address) as two,
        raw_client(master.address) as three,
    ):
        (seen,) = await put(master, "orders")
        held = Held(master)
        result = await master.put(Message("orders", b"x"))
        for client in (one, two):
            await client.send(*(view(result.physic_offset) for _ in range(50)))
        await eventually(lambda: waiting_of(servers[-1]) == 2)
        with trio.fail_after(WITHIN_S):
            assert said(await three.ask(view(result.physic_offset))) == REFUSED
            assert (await three.ask(view(seen.physic_offset))).code == 0
        held.release()
        with trio.fail_after(WITHIN_S):
            assert [(await one.receive()).code for _ in range(50)] == [0] * 50


async def test_a_one_way_request_is_not_answered(tmp_path):
    """Neither at once nor later."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        (result,) = await put(master, "orders")
        await client.send(attrs.evolve(view(result.physic_offset), flag=2, opaque=1))
        response = await client.ask(attrs.evolve(view(result.physic_offset), opaque=2))
        assert (response.opaque, response.code) == (2, 0)

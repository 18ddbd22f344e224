"""What a slave learns from a client port: the intended HA port, its master's file size."""

import contextlib
import json

import attrs
import pytest
import trio

import hastore
from hastore.broker.node.slave import run_slave
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.config import HAConfig
from hastore.env.real import real_env
from hastore.errors import FileSizeMismatchError, WrongPortError
from hastore.ha import client_port
from hastore.ha.client_port import (
    CLOSED_AT_ONCE_S,
    ClientPort,
    MasterPort,
    PortKind,
    ask_client_port,
    questions,
    read_answers,
    wrong_port,
)
from hastore.status import BrokerRole, FlushDiskType, HAProtocol
from hastore.store.commit_log import CommitLog
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.ha_frames import REPORT, REPORT_DIVERGED
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand
from tests.ha.asking import Asked, slave_that_asks
from tests.support.nodes.harness import (
    FILE_SIZE,
    log_bytes,
    master_config,
    messages,
    raw_master,
    read_report,
    slave_config,
)
from tests.support.waiting import eventually

STATUS, INFO = RequestCode.GET_BROKER_HA_STATUS, RequestCode.GET_BROKER_RUNTIME_INFO
CONFIG, ROUTE = RequestCode.GET_BROKER_CONFIG, RequestCode.GET_ROUTEINFO_BY_TOPIC
UNKNOWN = RemotingCommand(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, flag=1)
ADDRESS = ("10.0.0.1", 10911)


def answer(body=b"", code=ResponseCode.SUCCESS):
    return RemotingCommand(code=code, flag=1, body=body)


def broker(config, max_offset=b"4096"):
    """Return a RocketMQ broker's answers; it does not know 907 and routes."""
    table = b'{"table":{"commitLogMaxOffset":"' + max_offset + b'","runtime":"[ 0 days ]"}}'
    return {STATUS: UNKNOWN, INFO: answer(table), CONFIG: answer(config), ROUTE: UNKNOWN}


# -- the questions, and what the answers mean ------------------------------------------------------


def test_questions_are_four_requests_with_their_codes_as_opaques():
    """They are sent in one piece, small enough for one segment of Ethernet."""
    reader = FrameReader(1 << 20)
    reader.feed(questions())
    asked = [reader.next_command() for _ in range(4)]
    assert reader.next_command() is None
    assert [each.opaque for each in asked] == [each.code for each in asked]
    assert {each.code for each in asked} == {STATUS, INFO, CONFIG, ROUTE}
    assert len(questions()) < 1460


@pytest.mark.parametrize("before", range(8))
def test_rocketmq_master_reads_no_ack_from_the_questions(before):
    """It takes the last whole eight bytes that it has read; masters ignore -1."""
    read = bytes(before) + questions()
    end = len(read) - len(read) % 8
    assert REPORT.unpack(read[end - 8 : end]) == (REPORT_DIVERGED,)


@pytest.mark.parametrize("name", [b"mapedFileSizeCommitLog", b"mappedFileSizeCommitLog"])
def test_broker_configuration_yields_ha_port_and_file_size(name):
    """RocketMQ 4 and 5 name the size differently."""
    config = b"brokerName=b\nhaListenPort=10912\n" + name + b"=1073741824\nlistenPort=10911\n"
    assert read_answers(broker(config)) == ClientPort(
        kind=PortKind.NODE, ha_port=10912, mapped_file_size=1 << 30, max_offset=4096
    )


@pytest.mark.parametrize(
    ("line", "protocol"),
    [
        (b"", None),
        (b"enableControllerMode=true\n", HAProtocol.AUTOSWITCH),
        (b"enableControllerMode=false\n", HAProtocol.CLASSIC),
    ],
)
def test_broker_configuration_yields_the_protocol_of_its_ha_port(line, protocol):
    """RocketMQ 4 has no controller."""
    found = read_answers(broker(b"haListenPort=10912\n" + line))
    assert (found.ha_port, found.ha_protocol) == (10912, protocol)


@pytest.mark.parametrize(
    "config",
    [b"", b"haListenPort=99999999\nmapedFileSizeCommitLog=12\n", b"\xff=\n=\nhaListenPort"],
)
def test_invalid_configuration_values_are_ignored(config):
    """A port above 65535, an impossible file size, bytes that are not text."""
    assert read_answers(broker(config, b"x")) == ClientPort(kind=PortKind.NODE)


def test_name_server_is_identified_by_its_answer_for_a_topic():
    """RocketMQ 4's answers nothing else, RocketMQ 5's does not know the other requests."""
    route = answer(code=ResponseCode.TOPIC_NOT_EXIST)
    assert read_answers({ROUTE: route}).kind is PortKind.NAME_SERVER
    assert read_answers(dict.fromkeys((STATUS, INFO, CONFIG), UNKNOWN) | {ROUTE: route}) == (
        ClientPort(kind=PortKind.NAME_SERVER)
    )


def test_broker_that_refuses_all_questions_is_a_client_port():
    """With access control it refuses each question, but an HA port would not answer at all."""
    refused = answer(code=ResponseCode.SYSTEM_ERROR)
    assert read_answers(dict.fromkeys((STATUS, INFO, CONFIG), refused) | {ROUTE: UNKNOWN}) == (
        ClientPort(kind=PortKind.OTHER)
    )
    assert read_answers({}) is None


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", PortKind.OTHER),
        (b"[]", PortKind.OTHER),
        (b'{"hastore": 3}', PortKind.OTHER),
        (b'{"hastore": {"role": "SLAVE"}}', PortKind.NODE),
    ],
)
def test_malformed_answer_is_not_an_error(body, kind):
    """It comes from a client port of an unknown kind, or from a node without details."""
    assert read_answers({STATUS: answer(body)}) == ClientPort(kind=kind)


@pytest.mark.parametrize(
    ("found", "said", "hint"),
    [
        (
            ClientPort(kind=PortKind.NODE, ha_port=20912),
            "10.0.0.1:10911 is the client port; the HA port is 20912",
            "--master 10.0.0.1:20912",
        ),
        (
            ClientPort(kind=PortKind.OTHER),
            "10.0.0.1:10911 is the client port; the HA port is usually 10912",
            "--master 10.0.0.1:10912",
        ),
        (
            ClientPort(kind=PortKind.NODE, master="10.0.0.9:10912"),
            "the client port of a slave",
            "--master 10.0.0.9:10912",
        ),
        (
            ClientPort(kind=PortKind.NODE, ha_port=ADDRESS[1]),  # a port mapping in between
            "10.0.0.1:10911 leads to a client port; its master listens for slaves on port 10911",
            "map a port to the master's HA port",
        ),
        (ClientPort(kind=PortKind.NAME_SERVER), "is a name server, not a master", "10912"),
    ],
)
def test_error_names_the_intended_port(found, said, hint):
    """With its number where it is known, and with "usually" where it is not."""
    error = wrong_port(ADDRESS, found)
    assert said in str(error)
    assert hint in error.hint
    assert error.exit_code == 2


# -- asking ----------------------------------------------------------------------------------------


async def test_hastore_master_and_slave_answer_the_questions(tmp_path):
    """A master reports its HA port, file size and end of the log; a slave reports its master."""
    any_port = ("127.0.0.1", 0)
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER, listen=any_port)
    async with hastore.open_master(config) as master:
        for message in messages(3):
            await master.put(message)
        assert await ask_client_port(master.address) == ClientPort(
            kind=PortKind.NODE,
            ha_port=master.ha_address[1],
            mapped_file_size=FILE_SIZE,
            max_offset=master.max_offset,
            ha_protocol=HAProtocol.CLASSIC,
        )
        settings = slave_config(tmp_path / "s", master.ha_address, listen=any_port)
        async with hastore.open_slave(settings) as slave:
            found = await ask_client_port(slave.address)
        assert (found.ha_port, found.master) == (None, f"127.0.0.1:{master.ha_address[1]}")
        assert await ask_client_port(master.ha_address) is None


async def test_a_groups_master_names_its_group(tmp_path):
    """No handshake does, so a node without a log asks for it."""
    config = master_config(
        tmp_path,
        listen=("127.0.0.1", 0),
        ha=HAConfig(protocol=HAProtocol.AUTOSWITCH),
        node_id=1,
        replica_group="g1",
    )
    async with hastore.open_master(config) as master:
        found = await ask_client_port(master.address)
    assert (found.replica_group, found.node_id) == ("g1", 1)
    assert found.ha_protocol is HAProtocol.AUTOSWITCH


@contextlib.asynccontextmanager
async def listening(serve):
    """Listen on a port and pass its connections to `serve`, one after the other."""
    listener = await open_listener(("127.0.0.1", 0), "a test")

    async def accept():
        while True:
            sock, _ = await listener.accept()
            with sock:
                await serve(sock)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        yield bound_address(listener)
        nursery.cancel_scope.cancel()
    listener.close()


async def name_server(sock):
    """Answer as RocketMQ 5's name server does."""
    data = await sock.recv(8)
    if data[:4] == bytes(4):
        return  # a frame without a header: a name server closes
    reader = FrameReader(1 << 20)
    while data:
        reader.feed(data)
        while (request := reader.next_command()) is not None:
            is_route = request.code == ROUTE
            code = ResponseCode.TOPIC_NOT_EXIST if is_route else UNKNOWN.code
            await sock.send(encode_command(request.response(code, remark="none")))
        data = await sock.recv(4096)


async def silent(sock):
    """Read everything and send nothing."""
    while await sock.recv(4096):
        pass


async def test_port_without_a_valid_answer_returns_none(monkeypatch):
    """It is silent, speaks another protocol, closes, or has no listener."""
    monkeypatch.setattr(client_port, "ASK_TIMEOUT_S", 0.2)

    async def web(sock):
        await sock.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def closing(_sock):
        await trio.lowlevel.checkpoint()

    for serve in (silent, web, closing):
        async with listening(serve) as address:
            assert await ask_client_port(address) is None
    assert await ask_client_port(("127.0.0.1", 1)) is None


# -- a slave at the wrong port ---------------------------------------------------------------------


async def end_of(config):
    """Run a slave until it ends by itself, and return the error's text."""
    with pytest.raises(WrongPortError) as caught, trio.fail_after(60):
        await run_slave(config, real_env(), ask_client_port=ask_client_port)
    return str(caught.value)


@pytest.mark.parametrize("log_size", [0, 300])
async def test_a_slave_at_a_client_port_ends_and_names_the_ha_port(tmp_path, log_size):
    """With or without a log, which does not change; the stop is clean."""
    any_port = ("127.0.0.1", 0)
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER, listen=any_port)
    async with hastore.open_master(config) as master:
        for message in messages(log_size):
            await master.put(message)
        if log_size:
            async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
                await eventually(lambda: slave.max_offset == master.max_offset)
        said = await end_of(slave_config(tmp_path / "s", master.address))
        port = master.ha_address[1]
        assert said == f"127.0.0.1:{master.address[1]} is the client port; the HA port is {port}"
        if log_size:
            assert log_bytes(tmp_path / "s", master.max_offset) == log_bytes(
                tmp_path / "m", master.max_offset
            )
        assert not (tmp_path / "s" / "abort").exists()


async def test_slave_at_a_name_server_ends_with_wrong_port(tmp_path):
    """The name server closes the slave's link, and answers a question for a topic."""
    async with listening(name_server) as address:
        assert "is a name server, not a master" in await end_of(slave_config(tmp_path, address))


async def test_slave_at_a_web_server_ends_with_wrong_port(tmp_path):
    """Bytes that begin with HTTP/ are not a frame."""

    async def web(sock):
        await sock.recv(8)
        await sock.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with listening(web) as address:
        assert "speaks HTTP: it is not a master's HA port" in await end_of(
            slave_config(tmp_path, address)
        )


async def test_unknown_port_that_closes_is_retried_and_asked_three_times(tmp_path):
    """It may be a master that is starting, or that has no room for another slave."""
    ask = Asked(None)
    async with raw_master() as master:
        config = slave_config(tmp_path, master.address)
        async with slave_that_asks(config, ask):
            links_after = 3
            while links_after:
                links_after -= ask.addresses.count(master.address) == 3
                sock = await master.accept()
                await read_report(sock)
                sock.close()
        assert ask.addresses.count(master.address) == 3
        below = (master.address[0], master.address[1] - 1)
        # Two for the file size, three each for the protocol and for the reason, and no more.
        assert ask.addresses.count(below) == 8


async def test_master_that_has_sent_a_frame_is_never_asked_for_its_port(tmp_path):
    """A master that closes its links is still a master."""
    ask = Asked(None)
    async with raw_master() as master:
        config = slave_config(tmp_path, master.address)
        async with slave_that_asks(config, ask):
            for _ in range(4):
                sock = await master.accept()
                await read_report(sock)
                await sock.send(bytes(12))  # a heartbeat at 0
                sock.close()
        assert master.address not in ask.addresses


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_flushed_offset_is_never_the_first_report(tmp_path, flush):
    """A flush may end while the new slave asks for its master's file size."""
    asked, answered = trio.Event(), trio.Event()

    async def ask(_address):
        asked.set()
        await answered.wait()

    async with raw_master() as master:
        config = slave_config(tmp_path, master.address, store={"flush_disk_type": flush})
        async with slave_that_asks(config, ask) as slave:
            sock = await master.accept()
            await asked.wait()
            slave.ha_client.notify_flushed()
            answered.set()
            assert await read_report(sock) == 1
            slave.ha_client.link.reported_offset = -5
            slave.ha_client.notify_flushed()
            expected = 0 if flush is FlushDiskType.SYNC_FLUSH else -5
            assert slave.ha_client.link.reported_offset == expected
            sock.close()


async def test_port_that_closes_late_is_not_asked(tmp_path, monkeypatch):
    """A RocketMQ master closes at the second report, and takes a question for one."""
    assert CLOSED_AT_ONCE_S < 5
    monkeypatch.setattr("hastore.ha.client_port.CLOSED_AT_ONCE_S", -1.0)  # every close is late
    ask = Asked(ClientPort(kind=PortKind.OTHER))
    async with raw_master() as master:
        config = slave_config(tmp_path, master.address)
        async with slave_that_asks(config, ask):
            for _ in range(3):
                sock = await master.accept()
                await read_report(sock)
                sock.close()
        assert master.address not in ask.addresses


# -- an empty slave and its master's file size -----------------------------------------------------


def sized(ha_port, size):
    return ClientPort(kind=PortKind.NODE, ha_port=ha_port, mapped_file_size=size)


@pytest.mark.parametrize("size", [FILE_SIZE // 4, FILE_SIZE])
async def test_an_empty_slave_takes_its_masters_file_size(tmp_path, size):
    """It asks the port below the HA port; then both nodes have the same files."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER, file_size=size)
    async with hastore.open_master(config) as master:
        for message in messages(600):
            await master.put(message)
        ask = Asked(sized(master.ha_address[1], size))
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=None)
        async with slave_that_asks(settings, ask) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            assert slave.status().mapped_file_size == size
        assert ask.addresses == [("127.0.0.1", master.ha_address[1] - 1)]
        names = [sorted(each.name for each in (tmp_path / d / "commitlog").iterdir()) for d in "ms"]
        end = f"{master.max_offset - master.max_offset % size:020d}"
        assert [n for n in names[0] if n <= end] == [n for n in names[1] if n <= end]
        # It has a log now, and does not ask again.
        async with slave_that_asks(settings, ask) as slave:
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.status().mapped_file_size == size
        assert len(ask.addresses) == 1


@pytest.mark.parametrize(("takes_s", "asked", "took_s"), [(0.01, 2, 1.02), (5.0, 1, 5.0)])
async def test_unanswered_questions_end_before_the_first_report_timeout(
    tmp_path, autojump_clock, takes_s, asked, took_s
):
    """A port that refuses is asked twice, a silent one once: a link without a report is closed."""
    ask = Asked(None, takes_s)
    config = slave_config(tmp_path, ("10.0.0.1", 10912), file_size=None)
    log = CommitLog.open(
        real_env(), config.store, store_host=("127.0.0.1", 1), needs_queue_offsets=False
    )
    await MasterPort(config, log, ask).learn_file_size()
    log.close(clean=True)
    assert ask.addresses == [("10.0.0.1", 10911)] * asked
    assert trio.current_time() == pytest.approx(took_s)
    assert took_s < config.ha.ha_first_report_timeout_ms / 1000


async def test_the_answer_of_another_node_does_not_count(tmp_path):
    """On one host the port below may be any node's; its answer must name this HA port."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        ask = Asked(sized(master.ha_address[1] + 2, 8192))
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=None)
        async with slave_that_asks(settings, ask) as slave:  # no messages: 1 GiB is large
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.status().mapped_file_size == 1 << 30


async def test_chosen_size_unlike_the_masters_is_refused_before_copying(tmp_path):
    """The error names both sizes and a remedy; the directory stays empty."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(300):
            await master.put(message)
        ask = Asked(sized(master.ha_address[1], FILE_SIZE))
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=FILE_SIZE * 2)
        async with slave_that_asks(settings, ask) as slave:
            await eventually(lambda: slave.status().state == "failed")
            link = slave.status().master_link
            assert str(FILE_SIZE) in link.reason
            assert str(FILE_SIZE * 2) in link.reason
            assert f"--mapped-file-size {FILE_SIZE}" in link.hint
            assert isinstance(slave.ha_client.error, FileSizeMismatchError)
            assert slave.max_offset == 0
    assert list((tmp_path / "s" / "commitlog").iterdir()) == []


async def test_open_slave_asks_only_without_a_chosen_size(tmp_path, monkeypatch):
    """The answer is a real master's, over the wire."""
    any_port = ("127.0.0.1", 0)
    config = master_config(
        tmp_path / "m", role=BrokerRole.ASYNC_MASTER, listen=any_port, file_size=FILE_SIZE // 2
    )
    asked = []

    async def ask(address, **_how):
        asked.append(address)
        return await ask_client_port(master.address)  # in place of the port below the HA port

    monkeypatch.setattr("hastore.ha.client_port.ask_client_port", ask)
    async with hastore.open_master(config) as master:
        for message in messages(300):
            await master.put(message)
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=None)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            assert slave.status().mapped_file_size == FILE_SIZE // 2
        chosen = attrs.evolve(
            settings, store=attrs.evolve(settings.store, data_dir=str(tmp_path / "s2"))
        )
        chosen = attrs.evolve(
            chosen, store=attrs.evolve(chosen.store, mapped_file_size=FILE_SIZE // 2)
        )
        async with hastore.open_slave(chosen) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
    assert len(asked) == 1


def test_read_answers_uses_the_names_of_a_nodes_status():
    """Role, HA address and file size."""
    status = {"role": "SYNC_MASTER", "ha_address": "[::]:10912", "mapped_file_size": 65536}
    found = read_answers({STATUS: answer(json.dumps({"hastore": status}).encode())})
    assert (found.ha_port, found.mapped_file_size, found.master) == (10912, 65536, None)


async def test_a_master_that_did_not_answer_is_asked_again_after_a_link_in_step(tmp_path):
    """Why a link was refused is asked three times in vain at most, but not for ever."""
    ask = Asked(None)
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        await master.put(messages(1)[0])
        async with slave_that_asks(slave_config(tmp_path / "s", master.ha_address), ask) as slave:
            for _ in range(5):
                await eventually(lambda: slave.ha_client.live_link is not None)
                asked = len(ask.addresses)
                for connection in list(master.ha_service.connections.values()):
                    connection.finish("a test ends it")
                await eventually(lambda asked=asked: len(ask.addresses) > asked)

"""What a slave learns from a client port: which HA port was meant, its master's file size."""

import contextlib
import json
from functools import partial

import attrs
import pytest
import trio

import hastore
from hastore.broker.node.slave import run_slave
from hastore.concurrency.tcp import bound_address, open_listener
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
from hastore.status import BrokerRole
from hastore.store.commit_log import CommitLog
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.ha_frames import REPORT, REPORT_DIVERGED
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand
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
    """What a RocketMQ broker answers; it knows nothing of 907 and of routes."""
    table = b'{"table":{"commitLogMaxOffset":"' + max_offset + b'","runtime":"[ 0 days ]"}}'
    return {STATUS: UNKNOWN, INFO: answer(table), CONFIG: answer(config), ROUTE: UNKNOWN}


# -- the questions, and what the answers mean ------------------------------------------------------


def test_every_question_can_be_read_and_comes_back_with_its_code():
    """Four requests in one piece, small enough for one segment of Ethernet."""
    reader = FrameReader(1 << 20)
    reader.feed(questions())
    asked = [reader.next_command() for _ in range(4)]
    assert reader.next_command() is None
    assert [each.opaque for each in asked] == [each.code for each in asked]
    assert {each.code for each in asked} == {STATUS, INFO, CONFIG, ROUTE}
    assert len(questions()) < 1460


@pytest.mark.parametrize("before", range(8))
def test_a_rocketmq_master_reads_the_questions_as_no_acknowledgement(before):
    """It takes the last whole eight bytes of what it has read; masters ignore -1."""
    read = bytes(before) + questions()
    end = len(read) - len(read) % 8
    assert REPORT.unpack(read[end - 8 : end]) == (REPORT_DIVERGED,)


@pytest.mark.parametrize("name", [b"mapedFileSizeCommitLog", b"mappedFileSizeCommitLog"])
def test_a_brokers_configuration_names_port_and_size(name):
    """By the names of RocketMQ 4 and of 5."""
    config = b"brokerName=b\nhaListenPort=10912\n" + name + b"=1073741824\nlistenPort=10911\n"
    assert read_answers(broker(config)) == ClientPort(
        kind=PortKind.NODE, ha_port=10912, mapped_file_size=1 << 30, max_offset=4096
    )


@pytest.mark.parametrize(
    "config",
    [b"", b"haListenPort=99999999\nmapedFileSizeCommitLog=12\n", b"\xff=\n=\nhaListenPort"],
)
def test_what_cannot_be_is_not_known(config):
    """A port above 65535, a size that no file can have, bytes that are no text."""
    assert read_answers(broker(config, b"x")) == ClientPort(kind=PortKind.NODE)


def test_a_name_server_is_told_by_what_it_knows_of_a_topic():
    """One of RocketMQ 4 answers nothing else, one of 5 says that it does not know the others."""
    route = answer(code=ResponseCode.TOPIC_NOT_EXIST)
    assert read_answers({ROUTE: route}).kind is PortKind.NAME_SERVER
    assert read_answers(dict.fromkeys((STATUS, INFO, CONFIG), UNKNOWN) | {ROUTE: route}) == (
        ClientPort(kind=PortKind.NAME_SERVER)
    )


def test_a_broker_that_may_not_be_asked_is_a_client_port_all_the_same():
    """With access control every question is refused; what answers is no HA port."""
    refused = answer(code=ResponseCode.SYSTEM_ERROR)
    assert read_answers(dict.fromkeys((STATUS, INFO, CONFIG), refused) | {ROUTE: UNKNOWN}) == (
        ClientPort(kind=PortKind.OTHER)
    )
    assert read_answers({}) is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"hastore": 3}', b'{"hastore": {"role": "SLAVE"}}'])
def test_an_answer_that_makes_no_sense_is_no_error(body):
    """It is the port of somebody who is not known."""
    assert read_answers({STATUS: answer(body)}).kind in {PortKind.OTHER, PortKind.NODE}


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
            ClientPort(kind=PortKind.NODE, ha_port=ADDRESS[1]),  # a mapping of ports between
            "10.0.0.1:10911 leads to a client port; its master listens for slaves on port 10911",
            "map a port to the master's HA port",
        ),
        (ClientPort(kind=PortKind.NAME_SERVER), "is a name server, not a master", "10912"),
    ],
)
def test_the_error_names_the_port_that_was_meant(found, said, hint):
    """With its number where it is known, and "usually" where it is not."""
    error = wrong_port(ADDRESS, found)
    assert said in str(error)
    assert hint in error.hint
    assert error.exit_code == 2


# -- asking ----------------------------------------------------------------------------------------


async def test_a_hastore_master_and_its_slave_say_what_they_are(tmp_path):
    """The HA port, the size of the files, the end of the log; of a slave whose it is."""
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
        )
        settings = slave_config(tmp_path / "s", master.ha_address, listen=any_port)
        async with hastore.open_slave(settings) as slave:
            found = await ask_client_port(slave.address)
        assert (found.ha_port, found.master) == (None, f"127.0.0.1:{master.ha_address[1]}")
        assert await ask_client_port(master.ha_address) is None


@contextlib.asynccontextmanager
async def listening(serve):
    """A port whose connections `serve` gets, one after the other."""
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
    """Answer as RocketMQ 5's."""
    data = await sock.recv(8)
    if data[:4] == bytes(4):
        return  # a frame without a header: it closes
    reader = FrameReader(1 << 20)
    while data:
        reader.feed(data)
        while (request := reader.next_command()) is not None:
            is_route = request.code == ROUTE
            code = ResponseCode.TOPIC_NOT_EXIST if is_route else UNKNOWN.code
            await sock.send(encode_command(request.response(code, remark="none")))
        data = await sock.recv(4096)


async def silent(sock):
    """Take everything, say nothing."""
    while await sock.recv(4096):
        pass


async def test_who_says_nothing_is_nobody(monkeypatch):
    """Also who speaks something else, closes, or is not there."""
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
    """Run a slave until it ends by itself, and give the error."""
    with pytest.raises(WrongPortError) as caught, trio.fail_after(60):
        await run_slave(config, real_env(), ask_client_port=ask_client_port)
    return str(caught.value)


@pytest.mark.parametrize("log_size", [0, 300])
async def test_a_slave_at_a_client_port_ends_and_names_the_ha_port(tmp_path, log_size):
    """Whether it is new or has a log; nothing of it is changed, and its stop was a clean one."""
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


async def test_a_slave_at_a_name_server_ends_and_says_so(tmp_path):
    """It closes what is no request, and answers for a topic."""
    async with listening(name_server) as address:
        assert "is a name server, not a master" in await end_of(slave_config(tmp_path, address))


async def test_a_slave_at_a_web_server_ends_and_says_so(tmp_path):
    """What begins with HTTP/ is no frame."""

    async def web(sock):
        await sock.recv(8)
        await sock.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with listening(web) as address:
        assert "speaks HTTP: it is not a master's HA port" in await end_of(
            slave_config(tmp_path, address)
        )


class Asked:
    """Notes who is asked, and answers always the same."""

    def __init__(self, found, takes_s=0.0):
        self.found = found
        self.takes_s = takes_s
        self.addresses = []

    async def __call__(self, address):
        self.addresses.append(address)
        await trio.sleep(self.takes_s)
        return self.found


@contextlib.asynccontextmanager
async def slave_that_asks(config, ask):
    async with trio.open_nursery() as nursery:
        slave = await nursery.start(partial(run_slave, config, real_env(), ask_client_port=ask))
        yield slave
        slave.stop()


async def test_who_closes_and_is_no_client_port_is_tried_again_and_asked_three_times(tmp_path):
    """A master that starts, or has no room for another slave, is waited for."""
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
        assert ask.addresses.count(below) == 2  # for the file size: then it goes on without


async def test_who_has_spoken_once_is_never_asked_which_port_it_is(tmp_path):
    """A master that closes its links is a master still."""
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


async def test_who_closes_late_is_not_asked(tmp_path, monkeypatch):
    """A RocketMQ master closes at the second report: to it a question would be one."""
    assert CLOSED_AT_ONCE_S < 5
    monkeypatch.setattr("hastore.ha.client_port.CLOSED_AT_ONCE_S", -1.0)  # all is late
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
    """It asks the port below the HA port; the files are its master's, one for one."""
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
        # It has a log now, and asks no more.
        async with slave_that_asks(settings, ask) as slave:
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.status().mapped_file_size == size
        assert len(ask.addresses) == 1


@pytest.mark.parametrize(("takes_s", "asked", "took_s"), [(0.01, 2, 1.02), (5.0, 1, 5.0)])
async def test_a_client_port_that_does_not_answer_costs_less_than_a_master_waits(
    tmp_path, autojump_clock, takes_s, asked, took_s
):
    """One that refuses is asked twice, a silent one once: a link without a report is closed."""
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
    """On one host the port below may be anybody's; it must name this HA port as its own."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        ask = Asked(sized(master.ha_address[1] + 2, 8192))
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=None)
        async with slave_that_asks(settings, ask) as slave:  # nothing comes: 1 GiB is a lot here
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.status().mapped_file_size == 1 << 30


async def test_a_chosen_size_that_is_not_the_masters_is_refused_before_anything_is_copied(tmp_path):
    """Both sizes are named, and the way out; the directory stays empty."""
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


async def test_open_slave_asks_where_no_size_was_chosen(tmp_path, monkeypatch):
    """With the master's answer as it comes over the wire; a chosen size is not asked about."""
    any_port = ("127.0.0.1", 0)
    config = master_config(
        tmp_path / "m", role=BrokerRole.ASYNC_MASTER, listen=any_port, file_size=FILE_SIZE // 2
    )
    asked = []

    async def ask(address):
        asked.append(address)
        return await ask_client_port(master.address)  # where the port below would lead

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


def test_a_status_has_what_is_read_of_it():
    """The names that `read_answers` reads are those that a node writes."""
    status = {"role": "SYNC_MASTER", "ha_address": "[::]:10912", "mapped_file_size": 65536}
    found = read_answers({STATUS: answer(json.dumps({"hastore": status}).encode())})
    assert (found.ha_port, found.mapped_file_size, found.master) == (10912, 65536, None)

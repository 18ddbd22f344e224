"""What a slave takes from its master's client port, and when it takes nothing.

The master is a port with prepared answers, so that stock masters of both generations can be played.
"""

import contextlib
import json
from functools import partial
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing

from hastore.broker.clock.clock_readings import ClockReadings
from hastore.broker.groups import slave_synchronize
from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.groups.slave_synchronize import SlaveSynchronize
from hastore.concurrency.tcp import bound_address
from hastore.config import RemotingConfig, SlaveConfig, StoreConfig
from hastore.ha.client_port_link import open_client_port_link
from hastore.store.log.store_directory import DELAY_OFFSET_FILE
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode as Code
from hastore.wire.remoting_codes import ResponseCode
from tests.patience import WITHIN_S
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.nodes.configs import ANY_PORT
from tests.support.waiting import eventually

TOPICS = (
    b'{"dataVersion":{"counter":7,"timestamp":5},"topicConfigTable":{"T":{"order":false,"perm":4,'
    b'"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
    b'"writeQueueNums":8}}}'
)
GROUPS = (
    b'{"dataVersion":{"counter":2,"timestamp":5},"subscriptionGroupTable":{"g":{"groupName":"g",'
    b'"retryMaxTimes":3}}}'
)
OFFSETS = b'{"offsetTable":{"T@g":{0:5,1:7}}}'  # 4.9: bare keys, no version
DELAYS = b'{"offsetTable":{1:5,3:2}}'


def config_of_broker(ha_port):
    return f"brokerName=a\nhaListenPort={ha_port}\n".encode()


@attrs.define(eq=False)
class ScriptedPort:
    """A client port whose answers a test prepares: by code, (response code, body)."""

    address: tuple[str, int]
    answers: dict
    asked: list = attrs.field(factory=list)
    gates: dict = attrs.field(factory=dict)  # code → an event that its answer waits for
    is_waiting: bool = False
    closes: bool = False  # instead of the next answer
    ended: int = 0  # connections

    @property
    def rounds(self):
        """How often the first table was asked for."""
        return self.asked.count(Code.GET_ALL_TOPIC_CONFIG)

    async def serve(self, sock):
        reader = FrameReader(1 << 24)
        with sock, contextlib.suppress(OSError):
            while data := await sock.recv(65536):
                reader.feed(data)
                while (request := reader.next_command()) is not None:
                    self.asked.append(request.code)
                    if request.code in self.gates:
                        self.is_waiting = True
                        await self.gates[request.code].wait()
                    if self.closes:
                        return
                    code, body = self.answers.get(
                        request.code, (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b"")
                    )
                    await sock.send(encode_command(request.response(code, body=body)))
        self.ended += 1


@contextlib.asynccontextmanager
async def stock_master(end=0):
    """A RocketMQ 4.9 master whose log ends at ``end``; its HA port is one above."""
    listener = trio.socket.socket()
    await listener.bind(ANY_PORT)
    listener.listen()
    address = bound_address(listener)
    info = {"table": {"commitLogMaxOffset": str(end)}}
    port = ScriptedPort(
        address,
        {
            Code.GET_BROKER_RUNTIME_INFO: (0, json.dumps(info).encode()),
            Code.GET_BROKER_CONFIG: (0, config_of_broker(address[1] + 1)),
            Code.GET_ALL_TOPIC_CONFIG: (0, TOPICS),
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (0, GROUPS),
            Code.GET_ALL_CONSUMER_OFFSET: (0, OFFSETS),
            Code.GET_ALL_DELAY_OFFSET: (0, DELAYS),
        },
    )

    async def accept(nursery):
        while True:
            sock, _ = await listener.accept()
            nursery.start_soon(port.serve, sock)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, nursery)
            yield port
            nursery.cancel_scope.cancel()
    finally:
        listener.close()


@attrs.define(eq=False)
class FakeSlave:
    """The parts of a slave that the service uses; its log and queues hold what a test says."""

    disk: FakeDisk = attrs.field(factory=FakeDisk)
    link: object = attrs.field(factory=object)
    confirm_offset: int = 0
    flushed_offset: int = 0
    queue_ends: dict = attrs.field(factory=lambda: {0: 100, 2: 100})
    min_offset: int = 0
    dispatched_offset: int = 0
    deleted: dict = attrs.field(factory=dict)  # topics, by the store
    data: BrokerData = attrs.field(init=False)
    service: SlaveSynchronize = attrs.field(init=False)

    def follow(self, at, **config):
        """Make the service for a master, which is at a port one below its HA port."""
        host, port = at.address
        env = fake_env(self.disk)
        settings = SlaveConfig(
            store=StoreConfig(data_dir="/d"), **{"master": (host, port + 1), **config}
        )
        self.data = BrokerData.make(env, RemotingConfig(), "/d")
        self.data.load()
        self.service = SlaveSynchronize(
            env=env,
            config=settings,
            message_store=SimpleNamespace(
                commit_log=self,
                max_offset_in_queue=lambda _topic, queue: self.queue_ends[queue],
                consume_queues=self,
            ),
            dispatched_offset=lambda: self.dispatched_offset,
            delete_queues=self.delete_queues,
            data=self.data,
            live_link=lambda: self.link,
            confirm_offset=lambda: self.confirm_offset,
            clocks=ClockReadings(env.wall_clock),
        )
        return self.service

    has_undeleted = False

    async def delete_queues(self, deleted):
        """Record what the store has to delete."""
        await trio.lowlevel.checkpoint()
        self.deleted = deleted()

    def stored_delays(self):
        """The offsets in delayOffset.json; None without the file."""
        path = f"/d/{DELAY_OFFSET_FILE}"
        if not self.disk.exists(path):
            return None
        return json.loads(self.disk.read_file(path))["offsetTable"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 0.002)
    monkeypatch.setattr(slave_synchronize, "RETRY_MAX_S", 0.01)


@pytest.fixture
def lines(caplog):
    """Returns the log's lines of one event so far."""
    caplog.set_level("INFO", logger="hastore")

    def of(event):
        return [record.msg for record in caplog.records if record.msg["event"] == event]

    return of


@pytest.fixture
def slave():
    return FakeSlave()


async def more_rounds(port, count=2):
    """Wait for whole rounds that begin after now."""
    wanted = port.rounds + count + 1
    await eventually(lambda: port.rounds >= wanted)


async def test_the_tables_of_a_stock_master_are_copied(slave, nursery):
    """Topics with their queues and permissions, groups, consumers' offsets, delay offsets."""
    async with stock_master(end=50) as port:
        slave.confirm_offset = slave.flushed_offset = 50
        nursery.start_soon(slave.follow(port).run)
        await eventually(lambda: slave.stored_delays() == {"1": 5, "3": 2})
        topic = slave.data.topics.topics["T"]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (16, 8, 4)
        assert slave.data.topics.version.counter == 7
        assert slave.data.groups.find("g").retry_max_times == 3
        assert slave.data.offsets.offsets == {"T@g": {0: 5, 1: 7}}
        assert slave.service.delay_offsets == {1: 5, 3: 2}
        await eventually(lambda: slave.service.status().age_s is not None)
        status = slave.service.status()
        assert (status.reason, status.refused, status.delay_offsets_wait) == (None, {}, False)
        nursery.cancel_scope.cancel()


async def test_only_what_has_changed_is_written(slave, nursery):
    """Rounds without news leave the tables as they are; a change arrives."""
    async with stock_master() as port:
        nursery.start_soon(slave.follow(port).run)
        await eventually(lambda: slave.data.offsets.query("g", "T", 1) == 7)
        await more_rounds(port)
        tables = (slave.data.topics, slave.data.groups, slave.data.offsets)
        before = [table.changes for table in tables]
        await more_rounds(port, 5)
        assert [table.changes for table in tables] == before
        port.answers[Code.GET_ALL_CONSUMER_OFFSET] = (0, b'{"offsetTable":{"T@g":{0:6,1:3}}}')
        await eventually(lambda: slave.data.offsets.offsets == {"T@g": {0: 6, 1: 3}})
        nursery.cancel_scope.cancel()


async def test_a_copy_may_be_asked_for(slave, nursery, monkeypatch):
    """A whole round begins at once, and what the master had before it is there after it."""
    async with stock_master() as port:
        copying = slave.follow(port)
        nursery.start_soon(copying.run)
        await copying.copy_now()
        monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 1_000.0)
        await more_rounds(port, 0)
        port.answers[Code.GET_ALL_CONSUMER_OFFSET] = (0, b'{"offsetTable":{"T@g":{0:6,1:3}}}')
        with trio.fail_after(WITHIN_S):
            await copying.copy_now()
        assert slave.data.offsets.offsets == {"T@g": {0: 6, 1: 3}}
        nursery.cancel_scope.cancel()


async def test_a_delay_offset_waits_for_the_deliveries_that_it_passes(slave, nursery):
    """They are below the end that the master named: it must be confirmed here and on the disk."""
    slave.queue_ends = {0: 3, 2: 100}
    async with stock_master(end=50) as port:
        nursery.start_soon(slave.follow(port).run)
        for confirmed, flushed in ((49, 49), (50, 49), (49, 50)):
            slave.confirm_offset, slave.flushed_offset = confirmed, flushed
            await more_rounds(port)
            assert slave.service.status().delay_offsets_wait
            assert slave.stored_delays() is None
        slave.confirm_offset = 50
        await eventually(lambda: slave.stored_delays() is not None)
        assert slave.stored_delays() == {"1": 3, "3": 2}  # our queue of level 1 ends at 3
        slave.queue_ends[0] = 100
        await eventually(lambda: slave.stored_delays() == {"1": 5, "3": 2})
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("code", [Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET])
async def test_an_answer_that_comes_after_the_link_has_changed_is_dropped(slave, nursery, code):
    """It may be that of a former master."""
    slave.confirm_offset = slave.flushed_offset = 50
    async with stock_master(end=50) as port:
        gate = port.gates[code] = trio.Event()
        nursery.start_soon(slave.follow(port).run)
        await eventually(lambda: code in port.asked)
        slave.link = None
        gate.set()
        await eventually(lambda: port.ended)  # the connection: the answer was read
        if code is Code.GET_ALL_CONSUMER_OFFSET:
            assert slave.data.offsets.offsets == {}
        assert slave.stored_delays() is None
        slave.link = object()
        await eventually(lambda: slave.stored_delays() == {"1": 5, "3": 2})
        assert slave.data.offsets.offsets == {"T@g": {0: 5, 1: 7}}
        nursery.cancel_scope.cancel()


async def test_waiting_delay_offsets_are_forgotten_with_their_link(slave, nursery):
    """Another master's deliveries are elsewhere in its log."""
    async with stock_master(end=50) as port:
        nursery.start_soon(slave.follow(port).run)
        await eventually(lambda: slave.service.status().delay_offsets_wait)
        port.answers[Code.GET_ALL_DELAY_OFFSET] = (0, b'{"offsetTable":{"1":1}}')
        slave.link = object()
        await eventually(lambda: port.asked.count(Code.GET_BROKER_CONFIG) > 1)
        slave.confirm_offset = slave.flushed_offset = 50
        await eventually(lambda: slave.stored_delays() is not None)
        assert slave.stored_delays() == {"1": 1}
        nursery.cancel_scope.cancel()


async def test_without_a_link_nobody_is_asked(slave, nursery):
    """Nor after it ended."""
    async with stock_master() as port:
        slave.link = None
        nursery.start_soon(slave.follow(port).run)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(3 * slave_synchronize.INTERVAL_S)
        assert not port.asked
        slave.link = object()
        await more_rounds(port)
        nursery.cancel_scope.cancel()


MALFORMED = {
    "topics": (Code.GET_ALL_TOPIC_CONFIG, b'{"topicConfigTable":{"T":{"perm":"x"}}}'),
    "groups": (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b'{"subscriptionGroupTable":[]}'),
    "consumer offsets": (Code.GET_ALL_CONSUMER_OFFSET, b'{"offsetTable":{"T@g":{"0":"x"}}}'),
    "delay offsets": (Code.GET_ALL_DELAY_OFFSET, b'{"offsetTable":{"1":null}'),
}


@pytest.mark.parametrize("table", MALFORMED)
async def test_a_malformed_table_is_named_and_the_own_one_stays(slave, nursery, lines, table):
    """The other tables are copied; one line in the log names it, until it is well again."""
    slave.confirm_offset = slave.flushed_offset = 50
    async with stock_master(end=50) as port:
        nursery.start_soon(slave.follow(port).run)
        await eventually(slave.stored_delays)
        code, body = MALFORMED[table]
        good = port.answers[code]
        port.answers[code] = (0, body)
        await eventually(lambda: table in slave.service.status().refused)
        await more_rounds(port)
        assert [line["table"] for line in lines("table_refused")] == [table]
        assert list(slave.data.topics.topics) == ["T"]
        assert slave.data.groups.find("g").retry_max_times == 3
        assert slave.data.offsets.offsets == {"T@g": {0: 5, 1: 7}}
        assert slave.service.delay_offsets == {1: 5, 3: 2}
        port.answers[code] = good
        await eventually(lambda: not slave.service.status().refused)
        nursery.cancel_scope.cancel()


async def test_requests_that_an_old_master_does_not_know_are_tolerated(slave, nursery):
    """The others are answered, and ``status`` names those that are not."""
    async with stock_master() as port:
        del port.answers[Code.GET_ALL_DELAY_OFFSET]
        port.answers[Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = (ResponseCode.SYSTEM_ERROR, b"")
        nursery.start_soon(slave.follow(port).run)
        await eventually(lambda: len(slave.service.status().refused) == 2)
        assert slave.service.status().reason is None
        assert "answered with 3" in slave.service.status().refused["delay offsets"]
        assert slave.data.offsets.offsets == {"T@g": {0: 5, 1: 7}}
        nursery.cancel_scope.cancel()


A_SLAVE = b'{"hastore": {"role": "SLAVE", "master_link": {"address": "m:1"}}}'


@pytest.mark.parametrize(
    "who", ["nobody", "another node", "another server", "a named server", "a named slave"]
)
async def test_a_port_that_is_not_the_masters_is_one_quiet_line(
    slave, nursery, monkeypatch, lines, who
):
    """Nothing is asked of it but what it is; the reason and the setting are in ``status``."""
    attempts = []

    def open_link(address, access_key=None, tls=None):
        attempts.append(address)
        return open_client_port_link(address)

    monkeypatch.setattr(slave_synchronize, "open_client_port_link", open_link)
    async with stock_master() as port:
        service = slave.follow(port)
        if who == "another node":
            port.answers[Code.GET_BROKER_CONFIG] = (0, config_of_broker(1234))
        elif who == "another server":
            port.answers.clear()
        elif who.startswith("a named"):
            service = slave.follow(port, master_client=port.address)
            port.answers.clear()
            if who == "a named slave":
                port.answers[Code.GET_BROKER_HA_STATUS] = (0, A_SLAVE)
        else:
            with trio.socket.socket() as unused:
                await unused.bind(ANY_PORT)
                free = bound_address(unused)
            service = slave.follow(SimpleNamespace(address=free))
        nursery.start_soon(service.run)
        await eventually(lambda: len(attempts) > 3)
        (line,) = lines("tables_not_copied")
        assert line["level"] == "info"
        assert "--master-client" in service.status().hint
        assert service.status().age_s is None
        assert Code.GET_ALL_TOPIC_CONFIG not in port.asked
        assert not slave.data.topics.topics
        nursery.cancel_scope.cancel()


async def test_the_client_port_may_be_named(slave, nursery):
    """A named port may know another HA port, if ports are mapped in between."""
    async with stock_master() as port:
        service = slave.follow(port, master=("127.0.0.1", 1), master_client=port.address)
        nursery.start_soon(service.run)
        await eventually(lambda: slave.data.offsets.offsets == {"T@g": {0: 5, 1: 7}})
        nursery.cancel_scope.cancel()


async def test_a_master_that_goes_and_comes_back_is_asked_again(slave, nursery):
    """A closed connection is shown, and the next attempt copies."""
    async with stock_master() as port:
        service = slave.follow(port)
        nursery.start_soon(service.run)
        await more_rounds(port)
        gate = port.gates[Code.GET_ALL_TOPIC_CONFIG] = trio.Event()
        await eventually(lambda: port.is_waiting)
        port.gates.clear()
        port.closes = True
        gate.set()
        await eventually(lambda: "closed the connection" in (service.status().reason or ""))
        port.closes = False
        await eventually(lambda: service.status().reason is None)
        nursery.cancel_scope.cancel()


async def test_a_full_disk_delays_the_delay_offsets(slave, nursery):
    """They are in use only once they are on the disk; the write is repeated."""
    slave.confirm_offset = slave.flushed_offset = 50
    async with stock_master(end=50) as port:
        service = slave.follow(port)
        slave.disk.fail("write_file", disk_full(), path="delayOffset.json")
        nursery.start_soon(service.run)
        await eventually(lambda: "delay offsets" in service.status().refused)
        await more_rounds(port)
        assert service.delay_offsets == {}
        slave.disk.heal()
        await eventually(lambda: service.delay_offsets == {1: 5, 3: 2})
        await eventually(lambda: not service.status().refused)
        nursery.cancel_scope.cancel()


async def test_rows_that_hastore_does_not_allow_are_left_out(slave, nursery, lines):
    """One line says how many and names some."""
    async with stock_master() as port:
        body = json.loads(TOPICS)
        body["topicConfigTable"]["a b"] = body["topicConfigTable"]["T"]
        port.answers[Code.GET_ALL_TOPIC_CONFIG] = (0, json.dumps(body).encode())
        nursery.start_soon(slave.follow(port).run)
        await more_rounds(port)
        assert list(slave.data.topics.topics) == ["T"]
        (line,) = lines("table_rows_left_out")
        assert (line["rows"], line["examples"]) == (1, ("a b",))
        nursery.cancel_scope.cancel()


async def test_what_is_on_the_disk_is_the_beginning(nursery):
    """Delay offsets of the last run are kept for levels that the master does not name."""
    slave = FakeSlave(confirm_offset=50, flushed_offset=50)
    slave.disk.put(f"/d/{DELAY_OFFSET_FILE}", b'{"offsetTable":{"3":9,"x":1},"dataVersion":{}}')
    async with stock_master(end=50) as port:
        port.answers[Code.GET_ALL_DELAY_OFFSET] = (0, b'{"offsetTable":{"1":5}}')
        nursery.start_soon(slave.follow(port).run)
        await eventually(lambda: slave.service.delay_offsets == {1: 5, 3: 9})
        assert json.loads(slave.disk.read_file(f"/d/{DELAY_OFFSET_FILE}")) == {
            "offsetTable": {"1": 5, "3": 9},
            "dataVersion": {},
        }
        nursery.cancel_scope.cancel()


async def test_a_large_table_is_read_in_a_thread(slave, nursery, monkeypatch):
    """So that reading it holds up no append."""
    monkeypatch.setattr(slave_synchronize, "_READ_HERE_SIZE_MAX", 10)
    async with stock_master() as port:
        service = slave.follow(port)
        offload, offloaded = type(service.env.offload), []
        run = offload.run

        def counted(self, call):
            offloaded.append(call)
            return run(self, call)

        monkeypatch.setattr(offload, "run", counted)
        nursery.start_soon(service.run)
        with trio.fail_after(WITHIN_S):
            await eventually(lambda: slave.data.offsets.offsets == {"T@g": {0: 5, 1: 7}})
        assert any(isinstance(call, partial) and len(call.args[0]) > 10 for call in offloaded)
        nursery.cancel_scope.cancel()

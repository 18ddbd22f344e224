"""Bits that flip between master and slave, above TCP: found, reported, and never left in place.

A proxy between the two flips one bit where a test wants it.  A changed header costs a connection.
A changed record fails its checksum at dispatch: the slave stops and names the record, which can
then be repaired from the master.
"""

import contextlib

import attrs
import pytest
import trio

import hastore
from hastore.concurrency.tcp import bound_address, connect, open_listener, tune
from hastore.errors import UnreachableError
from hastore.ha import damaged_records
from hastore.message import Message
from hastore.status import BrokerRole, PutMessageStatus
from hastore.wire.ha_frames import HEADER
from tests.patience import WITHIN_S
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import log_bytes, master_config, messages, slave_config
from tests.support.waiting import eventually

MARK = b"<flip me>"
# A put may take as long as `eventually`: half a second was too short on a loaded machine.
HA = attrs.evolve(QUICK, ha_send_heartbeat_interval_ms=100, slave_timeout_ms=int(WITHIN_S * 1000))
# Only silence ends a frame that claims more bytes than will ever come.
SOON_SILENT = attrs.evolve(HA, ha_housekeeping_interval_ms=1_000)


@attrs.define
class FlippingProxy:
    """A link that passes everything on but flips one bit."""

    target: tuple
    address: tuple
    connections: int = 0
    flips: int = 0
    # (is it from the master?, the bytes of one read) -> the index to flip, or None.
    where: object = None

    async def pump(self, source, sink, from_master, scope):
        with contextlib.suppress(OSError):
            while data := await source.recv(65_536):
                at = None if self.where is None else self.where(from_master, data)
                if at is not None:
                    data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
                    self.where = None
                    self.flips += 1
                while data:
                    data = data[await sink.send(data) :]
        scope.cancel()

    async def link(self, slave):
        self.connections += 1
        with slave, await connect(self.target, 5) as master:
            tune(slave)
            tune(master)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.pump, slave, master, False, nursery.cancel_scope)
                nursery.start_soon(self.pump, master, slave, True, nursery.cancel_scope)

    async def serve(self, listener):
        async with trio.open_nursery() as nursery:
            while True:
                slave, _ = await listener.accept()
                nursery.start_soon(self.link, slave)


@contextlib.asynccontextmanager
async def flipping_proxy(target):
    with await open_listener(("127.0.0.1", 0), "a proxy") as listener:
        async with trio.open_nursery() as nursery:
            proxy = FlippingProxy(target, bound_address(listener))
            nursery.start_soon(proxy.serve, listener)
            yield proxy
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def pair(tmp_path, ha=HA):
    """Yield a master, a proxy and a slave that follows the master through it, in step."""
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        flipping_proxy(master.ha_address) as proxy,
        hastore.open_slave(slave_config(tmp_path / "s", proxy.address, ha=ha)) as slave,
    ):
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        for message in messages(3):
            assert (await master.put(message)).status is PutMessageStatus.PUT_OK
        yield master, proxy, slave


@pytest.mark.parametrize("at", [*range(8), 8, 9, 10])
async def test_a_changed_frame_header_costs_a_connection(tmp_path, at):
    """A changed offset or an impossible size ends the link; the next one brings the right bytes."""
    async with pair(tmp_path, SOON_SILENT) as (master, proxy, slave):
        begin = master.max_offset

        def where(from_master, data):
            if not from_master or len(data) < HEADER.size:
                return None
            # Only new bytes: a link after too long a silence repeats what the slave already has.
            offset, size = HEADER.unpack_from(data)
            return at if begin <= offset < master.max_offset and size > 3_000 else None

        proxy.where = where
        while not proxy.flips:
            request = master.submit(Message("T", bytes(3_000)))
            await eventually(lambda: proxy.flips or slave.max_offset == master.max_offset)
        for message in messages(5):
            master.submit(message)
        await eventually(lambda: slave.max_offset == master.max_offset)
        await request.wait()
        await eventually(lambda: slave.status().state == "streaming")
        assert proxy.connections >= 2
        end = master.max_offset
    assert log_bytes(tmp_path / "s", end) == log_bytes(tmp_path / "m", end)


async def test_frame_that_became_slightly_longer_stops_the_slave(tmp_path):
    """The next header ends up in the log; the slave gives a hint and acknowledges no more."""
    async with pair(tmp_path) as (master, proxy, slave):
        proxy.where = lambda from_master, data: 11 if from_master and len(data) > 100 else None
        master.submit(Message("T", bytes(3_000)))
        await eventually(lambda: proxy.flips)
        for message in messages(5):
            master.submit(message)
        await eventually(lambda: slave.status().state in {"failed", "diverged"})
        assert slave.status().master_link.hint
        await eventually(lambda: not master.ha_service.connections)
        late = await master.put(Message("T", b"nobody acknowledges this"))
        assert late.status is PutMessageStatus.SLAVE_NOT_AVAILABLE


# The last two sizes differ by the flipped bit, so one report becomes larger, the other smaller.
@pytest.mark.parametrize(("at", "size"), [(0, 50), (1, 50), (2, 50), (6, 50), (7, 50), (7, 66)])
async def test_changed_report_is_refused_or_corrected(tmp_path, at, size):
    """Beyond what was sent, or below the last report, it is refused, and the slave reconnects.

    In between, the next report corrects it.
    """
    async with pair(tmp_path) as (master, proxy, slave):
        end = (await master.put(Message("T", b"x" * 3_000))).next_offset
        flipped = end.to_bytes(8, "big")

        def where(from_master, data):
            return at if not from_master and data[:8] > flipped else None

        proxy.where = where
        result = await master.put(Message("T", b"y" * size))
        await eventually(lambda: proxy.flips)
        assert result.status.stored
        assert master.ha_service.ack_table.push2_slave_max_offset <= master.max_offset
        await eventually(lambda: slave.status().state == "streaming")
        await master.put(Message("T", b"z"))
        ack_table = master.ha_service.ack_table
        await eventually(lambda: ack_table.push2_slave_max_offset == master.max_offset)
        if not end <= result.next_offset ^ 0x10 << 8 * (7 - at) <= result.next_offset:
            assert proxy.connections >= 2


def flip_in_file(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("part", ["body", "magic"])
async def test_damaged_record_on_the_master_does_not_stop_the_slave(tmp_path, part, caplog):
    """It is as bad for every slave, so it is reported and the slave goes on."""
    config = master_config(tmp_path / "m", ha=HA, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(3):
            await master.put(message)
        bad = [master.max_offset]
        await master.put(Message("T", MARK + bytes(500)))
        bad.append(master.max_offset)
        await master.put(Message("T", MARK + bytes(500)))
        for message in messages(3):
            await master.put(message)
        (path,) = (tmp_path / "m" / "commitlog").iterdir()
        for offset in bad if part == "body" else bad[1:]:
            flip_in_file(path, offset + (100 if part == "body" else 5))
        config = slave_config(tmp_path / "s", master.ha_address, ha=HA)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.status().master_link.reason, "the damage is named")
            await eventually(lambda: slave.status().state == "streaming")
            late = await master.put(Message("T", b"and on it goes"))
            await eventually(lambda: slave.max_offset == late.next_offset)
            link = slave.status().master_link
            assert f"master {link.address} is damaged at {bad[1]}" in link.reason
            assert link.hint.startswith("on the master:")
            if part == "body":
                dispatch = slave.reput_message_service
                await eventually(lambda: dispatch.committed_offset == late.next_offset)
                assert dispatch.skipped == 2
            else:
                assert f"stopped at offset {bad[1]}" in slave.status().dispatch_fault
            assert slave.status().state == "streaming"
    assert "masters_log_is_damaged" in [record.msg["event"] for record in caplog.records]


async def test_damaged_record_is_compared_once_the_master_is_reachable(tmp_path, monkeypatch):
    """Until then the link is down, with the reason; if the master's is intact, the slave stops."""
    asked = []
    fetch_range = damaged_records.fetch_range

    async def fetched(*range_, reader):
        asked.append(range_)
        if len(asked) < 3:
            msg = "nobody is there"
            raise UnreachableError(msg)
        return await fetch_range(*range_, reader=reader)

    monkeypatch.setattr(damaged_records, "fetch_range", fetched)
    async with pair(tmp_path) as (master, proxy, slave):
        proxy.where = lambda from_master, data: 300 if from_master and len(data) > 500 else None
        master.submit(Message("T", bytes(800)))
        await eventually(lambda: "nobody is there" in (slave.status().master_link.reason or ""))
        assert slave.status().state == "backing-off"
        await eventually(lambda: slave.status().state == "failed")
        assert "of this slave's log is damaged" in slave.status().master_link.reason
        assert len(asked) == 3


@pytest.mark.parametrize("part", ["body", "topic", "size", "magic", "offset", "properties"])
async def test_changed_record_is_found_and_stops_the_slave(tmp_path, part):
    """Its checksums, stored offset or lengths show it, and the slave names its offset."""
    places = {"body": 100, "topic": -40, "size": 2, "magic": 5, "offset": 31, "properties": -30}

    def where(from_master, data):
        start = data.find(MARK)
        if not from_master or start < 0:
            return None
        place = places[part]
        if part == "topic":
            return data.index(b"Flipped", start) + 2
        if part == "properties":
            return data.index(b"KEYS", start) + 6
        return start + 100 if part == "body" else start - 88 + place

    async with pair(tmp_path) as (master, proxy, slave):
        proxy.where = where
        begin = master.max_offset
        master.submit(Message("Flipped", MARK + bytes(500), properties={"KEYS": "a key"}))
        for message in messages(20):  # a larger size reaches into later records
            master.submit(message)
        await eventually(lambda: slave.status().state == "failed")
        assert proxy.flips == 1
        reason = slave.status().master_link.reason
        assert f"the record at {begin} of this slave's log is damaged" in reason
        assert "log repair" in slave.status().master_link.hint
        await eventually(lambda: not master.ha_service.connections)
        late = await master.put(Message("T", b"nobody acknowledges this"))
        assert late.status is PutMessageStatus.SLAVE_NOT_AVAILABLE

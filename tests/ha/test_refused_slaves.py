"""A slave refused as ahead stays refused: its log has diverged, however far the master's grows."""

from __future__ import annotations

import contextlib
import json
import threading

import attrs
import pytest
import trio

import hastore
from hastore.env.real import real_env
from hastore.env.sync_thread import RealSyncThread
from hastore.ha.client_port import questions
from hastore.ha.refused_slaves import (
    AHEAD_MAX,
    FILE_NAME,
    PER_PEER_MAX,
    REFUSALS_MAX,
    RefusalOutcome,
    RefusedSlave,
    RefusedSlaves,
)
from hastore.status import PutMessageStatus
from hastore.wire.frame_reader import encode_command
from hastore.wire.ha_frames import REPORT, REPORT_DIVERGED
from hastore.wire.remoting_codes import RequestCode
from hastore.wire.remoting_command import RemotingCommand
from tests.patience import WITHIN_S
from tests.support.env.scripted_disk import ScriptedDisk, disk_full
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import master_config, messages, raw_slave, slave_config
from tests.support.waiting import eventually

HA = attrs.evolve(QUICK, slave_timeout_ms=200)
AHEAD = 2_000  # where the slave's log ends, beyond the master's
HERE = "127.0.0.1"


def config(directory, **changes):
    return master_config(directory, ha=HA, **changes)


async def report_and_be_refused(master, *offsets):
    """Play a stock slave that is refused; return the frame that refused it."""
    async with raw_slave(master) as peer:
        await peer.report(*offsets)
        frame = await peer.frame()
        await peer.closed_by_master()
    await eventually(lambda: not master.ha_service.connections)
    return frame


async def grow(master, end):
    """Put messages until the log extends beyond ``end``."""
    while master.max_offset <= end:
        await master.put(messages(1)[0])


async def refuse_and_outgrow(master):
    """Refuse a slave that is ahead, then grow past its end."""
    await master.put(messages(1)[0])
    assert master.max_offset < AHEAD
    await report_and_be_refused(master, AHEAD)
    await grow(master, AHEAD)


def stored(directory):
    """Return the refusals in the file, as (address, offset)."""
    path = directory / FILE_NAME
    if not path.exists():
        return []
    return [(row["address"], row["offset"]) for row in json.loads(path.read_bytes())["refused"]]


async def test_slave_that_was_ahead_stays_refused_after_the_log_passes_its_end(tmp_path):
    """It is sent no byte of the log, and its reports acknowledge nothing."""
    async with hastore.open_master(config(tmp_path)) as master:
        await refuse_and_outgrow(master)
        async with raw_slave(master) as peer:
            await peer.report(AHEAD)
            offset, body = await peer.frame()
            assert body == b""
            assert offset < AHEAD
            await peer.report(AHEAD, master.max_offset)
            await peer.closed_by_master()
        result = await master.put(messages(1)[0])
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        status = master.status()
        assert status.push2_slave_max_offset == 0
        assert status.refused[-1].reported_offset == AHEAD
        assert "not the same log" in status.refused[-1].reason
        assert FILE_NAME in status.refused[-1].hint


async def test_a_slave_that_was_ahead_when_it_connected_is_refused(tmp_path):
    """A stock slave reports its end up to 5 s later; a busy master has grown past it by then."""
    async with hastore.open_master(config(tmp_path)) as master:
        await master.put(messages(1)[0])
        end = master.max_offset
        async with raw_slave(master) as peer:
            await eventually(lambda: bool(master.ha_service.connections))
            await grow(master, AHEAD)
            await peer.report(AHEAD)
            assert await peer.frame() == (end, b"")
            await peer.report(master.max_offset)
            await peer.closed_by_master()
        await eventually(lambda: not master.ha_service.connections)
        status = master.status()
        assert status.push2_slave_max_offset == 0
        assert f"when it connected this master's log ended at {end}" in status.refused[-1].reason
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])
        assert (await report_and_be_refused(master, AHEAD))[1] == b""


async def test_slave_that_was_not_ahead_when_it_connected_is_served(tmp_path):
    """It was at the end, before it, or without a log; it lacks only what was appended since."""
    async with hastore.open_master(config(tmp_path)) as master:
        for may_be in (lambda end: end, lambda end: end - 1, lambda _: 1, lambda _: 0):
            async with raw_slave(master) as peer:
                await eventually(lambda: bool(master.ha_service.connections))
                end = master.max_offset
                await grow(master, end)
                await peer.report(may_be(end))
                offset, body = await peer.frame()
                assert offset + len(body) == master.max_offset
            await eventually(lambda: not master.ha_service.connections)
        assert not master.status().refused


async def test_slave_stays_refused_after_the_master_restarts(tmp_path):
    """``status`` lists it before it has come back."""
    async with hastore.open_master(config(tmp_path)) as master:
        await refuse_and_outgrow(master)
    for _ in range(2):
        async with hastore.open_master(config(tmp_path)) as master:
            (row,) = master.status().refused
            assert (row.address, row.reported_offset) == (HERE, AHEAD)
            assert row.age_s < 600
            await report_and_be_refused(master, AHEAD)
            result = await master.put(messages(1)[0])
            assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
            assert len(master.status().refused) == 1


async def test_another_slave_of_the_same_host_is_served(tmp_path):
    """The refusal is for an address and an offset: another offset is another slave."""
    async with hastore.open_master(config(tmp_path)) as master:
        await refuse_and_outgrow(master)
        for offset in (0, AHEAD - 1, AHEAD + 1):
            async with raw_slave(master) as peer:
                await peer.report(offset)
                begin, body = await peer.frame()
                assert begin == offset
                end = begin + len(body)
                assert end == master.max_offset
                await peer.report(end)
                await eventually(lambda end=end: master.status().push2_slave_max_offset == end)
                request = master.submit(messages(1)[0])
                await peer.frame()
                await peer.report(master.max_offset)
                assert await request.wait() is PutMessageStatus.PUT_OK
            await eventually(lambda: not master.ha_service.connections)


async def test_hastore_slave_that_reports_divergence_is_not_remembered(tmp_path):
    """It compares bytes and reports -1; next time the same offset may be valid."""
    async with hastore.open_master(config(tmp_path / "old")) as former:
        for message in messages(40):
            await former.put(message)
    async with hastore.open_master(config(tmp_path / "m")) as master:
        await master.put(messages(1)[0])
        settings = slave_config(tmp_path / "old", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            reported = master.status().refused[0].reported_offset
            assert reported > master.max_offset
            await eventually(lambda: not master.ha_service.connections)
        assert not len(master.ha_service.refused_slaves.table)
        await eventually(lambda: not stored(tmp_path / "m"))


async def test_hastore_slave_refused_from_the_table_names_the_divergence(tmp_path):
    """It is sent the end of the master's log at the refusal: nothing expired, the logs differ."""
    async with hastore.open_master(config(tmp_path / "old")) as former:
        for message in messages(40):
            await former.put(message)
    async with hastore.open_master(config(tmp_path / "m")) as master:
        await master.put(messages(1)[0])
        settings = slave_config(tmp_path / "old", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "diverged")
        reported = master.status().refused[0].reported_offset
        await eventually(lambda: not master.ha_service.connections)
        await report_and_be_refused(master, reported)
        await grow(master, reported + 50_000)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            assert "not the same log" in slave.status().master_link.reason


@pytest.mark.parametrize("stream", [b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"SSH-2.0-"])
async def test_offset_that_no_log_can_reach_is_not_remembered(tmp_path, stream):
    """The log would grow for years to reach what a port scan sends."""
    async with hastore.open_master(config(tmp_path)) as master:
        async with raw_slave(master) as scanner:
            await scanner.sock.send(stream)
            await scanner.closed_by_master()
        await eventually(lambda: not master.ha_service.connections)
        assert master.status().refused
        assert not len(master.ha_service.refused_slaves.table)
    assert not (tmp_path / FILE_NAME).exists()


REQUEST = encode_command(RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO, opaque=1))


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(questions(), id="a slave's questions"),
        pytest.param(REQUEST, id="request"),
        pytest.param(REQUEST * 3, id="requests"),
        pytest.param(REPORT.pack(AHEAD) + b"x", id="nine bytes"),
    ],
)
async def test_a_client_at_the_ha_port_is_not_remembered(tmp_path, stream):
    """Its request begins with two lengths, which look like an offset of some hundred GiB."""
    async with hastore.open_master(config(tmp_path)) as master:
        await master.put(messages(1)[0])
        async with raw_slave(master) as client:
            await client.sock.send(stream)
            await client.closed_by_master()
        await eventually(lambda: not master.ha_service.connections)
        (row,) = master.status().refused
        assert "no slave's first report" in row.reason
        assert "client port" in row.hint
        assert not len(master.ha_service.refused_slaves.table)
    assert not (tmp_path / FILE_NAME).exists()


async def test_slave_whose_first_report_arrives_twice_is_remembered(tmp_path):
    """A master that was paused for a while reads two reports at once."""
    async with hastore.open_master(config(tmp_path)) as master:
        await report_and_be_refused(master, AHEAD, AHEAD)
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])


async def test_removing_the_file_allows_refused_slaves_again(tmp_path):
    """The operator need not stop the master."""
    async with hastore.open_master(config(tmp_path)) as master:
        await refuse_and_outgrow(master)
        await eventually(lambda: master.ha_service.refused_slaves.is_there)
        assert stored(tmp_path) == [(HERE, AHEAD)]
        (tmp_path / FILE_NAME).unlink()
        async with raw_slave(master) as peer:
            await peer.report(AHEAD)
            offset, body = await peer.frame()
            assert offset == AHEAD
            assert body
    assert not (tmp_path / FILE_NAME).exists()


async def test_refusal_after_removing_the_file_is_stored_alone(tmp_path):
    """Slaves that were allowed again stay allowed."""
    async with hastore.open_master(config(tmp_path)) as master:
        await refuse_and_outgrow(master)
        await eventually(lambda: master.ha_service.refused_slaves.is_there)
        assert stored(tmp_path) == [(HERE, AHEAD)]
        (tmp_path / FILE_NAME).unlink()
        ahead = master.max_offset + 1000
        await report_and_be_refused(master, ahead)
        await eventually(lambda: stored(tmp_path) == [(HERE, ahead)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 200,
        b'{"schema": "hastore.refused-sl',
        b"[1, 2]",
        b'{"schema": "hastore.refused-slaves/2", "refused": []}',
        b'{"schema": "hastore.refused-slaves/1", "refused": [{"address": "x", "offset": true}]}',
        b'{"refused": 5}',
        b"\xff\xfe",
    ],
)
async def test_unreadable_file_is_logged_and_set_aside(tmp_path, content, caplog):
    """The master starts, and renames the file before it writes a new one."""
    path = tmp_path / FILE_NAME
    async with hastore.open_master(config(tmp_path)):
        pass
    path.write_bytes(content)
    async with hastore.open_master(config(tmp_path)) as master:
        assert "refused_slaves_unreadable" in caplog.text
        assert path.read_bytes() == content
        await report_and_be_refused(master, AHEAD)
        torn = tmp_path / f"{FILE_NAME}.torn"
        await eventually(torn.exists)
        assert torn.read_bytes() == content
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])


async def test_setting_an_unreadable_file_aside_allows_no_slave(tmp_path):
    """Between the rename and the new file there is none, but no operator has removed it."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / FILE_NAME).write_bytes(b"torn")
    env = real_env()
    disk = ScriptedDisk(env.disk)
    is_asked, may_go = threading.Event(), threading.Event()

    def wait(_write):
        is_asked.set()
        assert may_go.wait(WITHIN_S)

    disk.before("write_file", wait, path=FILE_NAME)
    async with hastore.open_master(config(tmp_path), env=attrs.evolve(env, disk=disk)) as master:
        try:
            await master.put(messages(1)[0])
            await report_and_be_refused(master, AHEAD)
            await eventually(is_asked.is_set)
            await grow(master, AHEAD)
            assert (await report_and_be_refused(master, AHEAD))[1] == b""
        finally:
            may_go.set()
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])


async def test_valid_rows_of_a_damaged_file_still_count(tmp_path):
    """One invalid row does not allow the slaves of the others."""
    async with hastore.open_master(config(tmp_path)) as master:
        await refuse_and_outgrow(master)
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])
    path = tmp_path / FILE_NAME
    data = json.loads(path.read_bytes())
    data["refused"].append({"address": HERE, "offset": "many"})
    path.write_text(json.dumps(data))
    async with hastore.open_master(config(tmp_path)) as master:
        await report_and_be_refused(master, AHEAD)
        assert AHEAD in {row.reported_offset for row in master.status().refused}


async def test_refusal_counts_on_a_full_disk_and_is_written_later(tmp_path, caplog):
    """A full disk does not allow a diverged slave."""
    env = real_env()
    disk = ScriptedDisk(env.disk)
    disk.fail("write_file", disk_full, path=FILE_NAME)
    async with hastore.open_master(config(tmp_path), env=attrs.evolve(env, disk=disk)) as master:
        await refuse_and_outgrow(master)
        await eventually(lambda: "refused_slaves_not_written" in caplog.text)
        await report_and_be_refused(master, AHEAD)
        result = await master.put(messages(1)[0])
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        disk.heal()
        await report_and_be_refused(master, AHEAD)
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])


async def test_full_disk_is_logged_once_for_many_refusals(tmp_path, caplog):
    """Each refusal tries to write the file again, and any peer can cause one."""
    env = real_env()
    disk = ScriptedDisk(env.disk)
    disk.fail("write_file", disk_full, path=FILE_NAME)
    async with hastore.open_master(config(tmp_path), env=attrs.evolve(env, disk=disk)) as master:
        refused = master.ha_service.refused_slaves
        for number in range(1, 6):
            await report_and_be_refused(master, AHEAD)
            await eventually(lambda n=number: disk.failures == n and refused._is_dirty)
        assert caplog.text.count("refused_slaves_not_written") == 1
        disk.heal()
        await report_and_be_refused(master, AHEAD)
        await eventually(lambda: stored(tmp_path) == [(HERE, AHEAD)])


async def test_refusal_just_before_a_stop_is_in_the_file(tmp_path):
    """A clean stop waits for the write."""
    async with hastore.open_master(config(tmp_path)) as master:
        async with raw_slave(master) as peer:
            await peer.report(AHEAD)
            await peer.frame()
    assert stored(tmp_path) == [(HERE, AHEAD)]


async def test_refusals_of_one_address_are_limited(tmp_path):
    """Status shows which are not remembered; the first ones are kept."""
    async with hastore.open_master(config(tmp_path)) as master:
        for number in range(PER_PEER_MAX + 3):
            await report_and_be_refused(master, AHEAD + number)
        assert "not remembered" in master.status().refused[-1].reason
        await eventually(lambda: len(stored(tmp_path)) == PER_PEER_MAX)
        await grow(master, AHEAD + PER_PEER_MAX + 3)
        frame = await report_and_be_refused(master, AHEAD)
        assert frame[1] == b""


# -- the table -------------------------------------------------------------------------------------


def refusal(address, offset=AHEAD, master_end=1000):
    return RefusedSlave(address=address, offset=offset, master_end=master_end, time_ms=1)


def test_all_spellings_of_an_address_are_the_same_peer():
    """IPv4 through an IPv6 socket is the same host, and so are capitals and zeros."""
    table = RefusedSlaves()
    assert table.add(refusal("10.0.0.7")) is RefusalOutcome.REMEMBERED
    assert table.add(refusal("2001:DB8:0::7")) is RefusalOutcome.REMEMBERED
    assert table.find("::ffff:10.0.0.7", AHEAD) is not None
    assert table.find("::FFFF:a00:7", AHEAD) is not None
    assert table.find("2001:db8::7", AHEAD) is not None
    assert table.find("2001:db8::8", AHEAD) is None
    assert table.find("10.0.0.7", AHEAD + 1) is None
    assert table.add(refusal("::ffff:10.0.0.7")) is RefusalOutcome.KNOWN
    assert len(table) == 2


def test_a_peer_cannot_fill_the_places_of_others():
    """The limit is per address or IPv6 network, and nothing that is remembered is evicted."""
    table = RefusedSlaves()
    table.add(refusal("10.0.0.7"))
    for number in range(3 * PER_PEER_MAX):
        table.add(refusal(f"2001:db8::{number:x}"))
        table.add(refusal("10.0.0.8", AHEAD + number))
    assert len(table) == 1 + 2 * PER_PEER_MAX
    assert table.add(refusal("10.0.0.8", 5 * AHEAD)) is RefusalOutcome.FULL
    for number in range(2 * REFUSALS_MAX):
        table.add(refusal(f"10.{number >> 8}.{number & 255}.9"))
    assert len(table) == REFUSALS_MAX
    assert table.add(refusal("10.0.0.10")) is RefusalOutcome.FULL
    assert table.find("10.0.0.7", AHEAD) is not None


def test_refusals_at_expired_offsets_are_forgotten():
    """A slave at a deleted offset is refused for that reason anyway."""
    table = RefusedSlaves()
    for number in range(PER_PEER_MAX):
        table.add(refusal("10.0.0.7", AHEAD + number))
    assert not table.forget_before(AHEAD)
    assert table.forget_before(AHEAD + 2)
    assert table.find("10.0.0.7", AHEAD) is None
    assert table.find("10.0.0.7", AHEAD + 2) is not None
    assert table.add(refusal("10.0.0.7", 5 * AHEAD)) is RefusalOutcome.REMEMBERED


def test_offset_too_far_ahead_is_absurd():
    """A log would need years to reach it."""
    table = RefusedSlaves()
    assert table.add(refusal("a", 1000 + AHEAD_MAX + 1)) is RefusalOutcome.ABSURD
    assert table.add(refusal("a", 1000 + AHEAD_MAX)) is RefusalOutcome.REMEMBERED


def test_decode_returns_the_encoded_rows_in_order():
    """The file keeps the whole table."""
    table = RefusedSlaves()
    for number in range(5):
        table.add(refusal(f"10.0.0.{9 - number}", AHEAD + number))
    again, wrong = RefusedSlaves.from_json(table.to_json(), "x")
    assert wrong is None
    assert list(again) == list(table)


def test_file_with_too_many_rows_is_read_up_to_the_limit():
    """Another program may have written it."""
    rows = [
        {"address": f"10.{n >> 8}.{n & 255}.1", "offset": 9, "master_end": 1, "time_ms": 1}
        for n in range(REFUSALS_MAX + 5)
    ]
    value = {"schema": "hastore.refused-slaves/1", "refused": rows}
    table, wrong = RefusedSlaves.from_json(value, "x")
    assert len(table) == REFUSALS_MAX
    assert "5 of" in wrong


@pytest.mark.parametrize(
    "row",
    [
        {"address": "x", "offset": 2, "master_end": 1, "time_ms": 1},  # a new slave's request
        {"address": "x", "offset": 9, "master_end": 9, "time_ms": 1},
        {"address": "x", "offset": 9, "master_end": -1, "time_ms": 1},
        {"address": "x", "offset": 1 << 63, "master_end": 1, "time_ms": 1},
        {"address": "x", "offset": 9.5, "master_end": 1, "time_ms": 1},
        {"address": 7, "offset": 9, "master_end": 1, "time_ms": 1},
        {"address": "x", "offset": 9, "master_end": 1},
        {"address": "x", "offset": 9, "master_end": 1, "time_ms": 1, "because": "nothing"},
        [],
    ],
)
def test_invalid_row_is_skipped(row):
    """It refuses no slave, and the file is reported as damaged."""
    value = {"schema": "hastore.refused-slaves/1", "refused": [row]}
    table, wrong = RefusedSlaves.from_json(value, "x")
    assert not len(table)
    assert "1 of 1" in wrong


def test_forget_removes_only_the_pair_that_it_names():
    """The -1 of a hastore slave is not an offset."""
    table = RefusedSlaves()
    table.add(refusal("10.0.0.7"))
    assert not table.forget("10.0.0.7", REPORT_DIVERGED)
    assert not table.forget("10.0.0.8", AHEAD)
    assert table.forget("10.0.0.7", AHEAD)
    assert not len(table)


# -- where a slave begins --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def beginning_at(master, offset):
    """Yield the status row of a peer whose first report is ``offset``, once it was checked."""
    async with raw_slave(master) as peer:
        await peer.report(offset)
        await eventually(lambda: bool(master.status().followers))
        (connection,) = master.ha_service.connections.values()
        await eventually(lambda: connection.has_checked)
        yield master.status().followers[0]
    await eventually(lambda: not master.ha_service.connections)


async def test_first_report_inside_a_record_is_noted_in_status(tmp_path):
    """The slave is served: a stock slave whose link broke reports such an offset."""
    async with hastore.open_master(config(tmp_path, file_size=16 * 1024)) as master:
        starts = []
        while master.max_offset < 18_000:  # with a BLANK, and two files
            starts.append((await master.put(messages(1)[0])).physic_offset)
        for offset in (0, 1, 2, starts[1], starts[20], starts[-1], 16 * 1024, master.max_offset):
            async with beginning_at(master, offset) as row:
                assert row.note is None, offset
        for offset in (starts[1] + 1, starts[20] - 1, starts[-1] + 100):
            async with beginning_at(master, offset) as row:
                assert str(offset) in row.note
                assert "record" in row.note
        assert not master.status().refused


@pytest.mark.parametrize("count", [1, 60])
async def test_hastore_slave_gets_no_note(tmp_path, count):
    """It begins an overlap before its end, or at 3, and compares."""
    async with hastore.open_master(config(tmp_path / "m")) as master:
        for message in messages(count):
            await master.put(message)
        settings = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
        await eventually(lambda: not master.ha_service.connections)
        async with hastore.open_slave(settings):
            await eventually(lambda: bool(master.status().followers))
            (connection,) = master.ha_service.connections.values()
            await eventually(lambda: connection.has_checked)
            assert master.status().followers[0].note is None
            assert connection.progress.first_report > 2


async def test_cold_record_at_the_first_report_is_read_in_a_thread(tmp_path, monkeypatch):
    """The event loop does not wait for the disk."""
    monkeypatch.setattr("hastore.ha.ha_connection.is_cold", lambda *_: True)
    calls = []
    env = real_env()

    @attrs.frozen
    class Offload:
        async def run(self, call):
            calls.append(call.__qualname__)
            return await trio.to_thread.run_sync(call)

        def sync_thread(self):
            return RealSyncThread()

    recording_env = attrs.evolve(env, offload=Offload())
    async with hastore.open_master(config(tmp_path), env=recording_env) as master:
        for message in messages(3):
            await master.put(message)
        async with beginning_at(master, 7) as row:
            assert row.note is not None
    assert any("check_beginning" in call for call in calls)

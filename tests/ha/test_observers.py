"""Classic observers of a replica group: they read to the confirm offset, and count for nothing."""

from __future__ import annotations

import contextlib

import attrs
import pytest
import trio

import hastore
from hastore.concurrency.tcp import connect
from hastore.config import HAConfig
from hastore.errors import ConfigError
from hastore.ha.group_ha_service import GroupHAService
from hastore.status import HAProtocol
from hastore.status import PutMessageStatus as Status
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.group_nodes import group, promote
from tests.support.nodes.harness import (
    FILE_SIZE,
    RawSlave,
    log_bytes,
    master_config,
    messages,
    slave_config,
)
from tests.support.waiting import eventually

GROUP = HAConfig(
    protocol=HAProtocol.AUTOSWITCH,
    sync_state_timeout_ms=1_000_000,
    ha_reconnect_backoff_min_ms=10,
    ha_reconnect_backoff_max_ms=50,
)

NO_HEARTBEATS = attrs.evolve(
    GROUP, ha_send_heartbeat_interval_ms=900_000, ha_housekeeping_interval_ms=1_000_000
)


def group_master(data_dir, ids=(1,), **changes):
    """Return the configuration of node 1 of a group, with a port for observers."""
    return master_config(
        data_dir,
        ha=changes.pop("ha", GROUP),
        node_id=1,
        replica_group="g1",
        group_ids=ids,
        observer_listen=ANY_PORT,
        **changes,
    )


def group_slave(data_dir, master, node_id=2):
    return slave_config(data_dir, master.ha_address, ha=GROUP, node_id=node_id, replica_group="g1")


def observer_config(data_dir, master):
    return slave_config(data_dir, master.observer_address)


@contextlib.asynccontextmanager
async def raw_observer(master):
    sock = await connect(master.observer_address, 5)
    try:
        yield RawSlave(sock)
    finally:
        sock.close()


async def put(master, count=1):
    """Put messages, whatever becomes of them; return the log's end."""
    for message in messages(count):
        await master.put(message)
    return master.max_offset


async def ended(master):
    await eventually(lambda: not master.ha_service.observers.connections)


async def test_observer_copies_what_is_confirmed(tmp_path):
    """A classic slave, over several files; its log is the master's."""
    async with hastore.open_master(group_master(tmp_path / "1")) as master:
        await put(master, 600)
        assert master.max_offset > 2 * FILE_SIZE
        async with hastore.open_slave(observer_config(tmp_path / "o", master)) as observer:
            await eventually(lambda: observer.max_offset == master.max_offset)
            end = await put(master, 5)
            await eventually(lambda: observer.max_offset == end)
    assert log_bytes(tmp_path / "o", end) == log_bytes(tmp_path / "1", end)


async def test_observer_is_sent_nothing_above_the_confirm_offset(tmp_path):
    """A member lacks the rest, so another master might not have it."""
    async with (
        hastore.open_master(group_master(tmp_path / "1", (1, 2), ha=NO_HEARTBEATS)) as master,
        raw_observer(master) as peer,
    ):
        assert isinstance(master.ha_service, GroupHAService)
        await put(master, 20)
        await peer.report(1)
        assert await peer.frame() == (0, b""), "where the confirm offset is"
        async with hastore.open_slave(group_slave(tmp_path / "2", master)):
            end, received = master.max_offset, 0
            while received < end:
                offset, body = await peer.frame()
                assert offset == received
                assert body, "the link was idle"
                received += len(body)
                assert received <= master.ha_service.confirm_offset()
        await eventually(master.ha_service.sync_state_set.missing)
        confirmed = master.ha_service.confirm_offset()
        await put(master, 20)
        async with raw_observer(master) as late:
            await late.report(1)
            body = b""
            while len(body) < confirmed:
                offset, more = await late.frame()
                body += more
            assert len(body) == confirmed
            observers = master.ha_service.observers
            connection = list(observers.connections.values())[-1]
            await eventually(lambda: connection.write_socket_service in observers.rounds.idle)
            assert connection.progress.next_transfer_from_where == confirmed


async def test_confirm_offset_wakes_an_idle_observer(tmp_path):
    """Without a heartbeat's help, and with only the bytes that are confirmed."""
    async with (
        hastore.open_master(group_master(tmp_path / "1", (1, 2), ha=NO_HEARTBEATS)) as master,
        hastore.open_slave(group_slave(tmp_path / "2", master)),
        raw_observer(master) as peer,
    ):
        await peer.report(1)
        assert await peer.frame() == (0, b"")
        received = 0
        for _ in range(20):
            end = await put(master)
            while received < end:
                offset, body = await peer.frame()
                assert offset == received
                received += len(body)
            await peer.report(received)


async def test_observer_never_counts(tmp_path):
    """No put is PUT_OK by it, it is in no set, and raises no ack."""
    async with (
        hastore.open_master(group_master(tmp_path / "1", (1, 2))) as master,
        raw_observer(master) as peer,
    ):
        service = master.ha_service
        async with hastore.open_slave(group_slave(tmp_path / "2", master)):
            await eventually(lambda: not service.sync_state_set.missing())
            confirmed = await put(master, 5)
        await eventually(service.sync_state_set.missing)
        acked = service.ack_table.push2_slave_max_offset
        assert (await master.put(messages(1)[0])).status is Status.SLAVE_NOT_AVAILABLE
        await peer.report(1)
        _offset, body = await peer.frame()
        assert len(body) == confirmed
        await peer.report(confirmed)
        (connection,) = service.observers.connections.values()
        await eventually(lambda: connection.progress.counts_as_ack)
        assert (await master.put(messages(1)[0])).status is Status.SLAVE_NOT_AVAILABLE
        assert service.confirm_offset() == confirmed
        status = master.status()
        assert status.push2_slave_max_offset == acked
        assert not status.slaves
        assert service.sync_state_set.accepted == {1, 2}
        assert not service.observers.ack_table.push2_slave_max_offset


async def test_status_shows_observers_apart(tmp_path):
    """With their offsets, and the port; its JSON form reads back."""
    async with hastore.open_master(group_master(tmp_path / "1")) as master:
        end = await put(master, 3)
        async with raw_observer(master) as peer:
            await peer.report(1)
            _offset, body = await peer.frame()
            assert len(body) == end
            await peer.report(end)
            await eventually(lambda: master.status().observers[0].ack_offset == end)
            status = master.status()
            (row,) = status.observers
            assert (row.sent_offset, row.state) == (end, "streaming")
            assert status.observer_address == "{}:{}".format(*master.observer_address)
            again = type(status).from_dict(status.to_dict())
            assert again.observers == status.observers
        async with raw_observer(master) as peer:
            await peer.report(-5)
            await peer.closed_by_master()
        assert "negative" in master.status().refused[-1].reason


async def test_file_that_an_observer_needs_is_held(tmp_path):
    """As for any slave; once it is deleted, the observer is refused."""
    async with hastore.open_master(group_master(tmp_path / "1")) as master:
        await put(master, 3)
        service = master.ha_service
        async with raw_observer(master) as peer:
            await peer.report(1)
            offset, body = await peer.frame()
            assert [hold.physic_offset for hold in service.holds()] == [0]
            await peer.report(offset + len(body))
            await eventually(lambda: service.holds()[0].physic_offset == master.max_offset)
            await put(master, 250)
            assert len(master.commit_log.mapped_file_queue.files) > 1
            await eventually(lambda: master.status().observers[0].sent_offset == master.max_offset)
            queue = master.commit_log.mapped_file_queue
            first = queue.take_first()
            service.refuse_expired()
            await peer.closed_by_master()
            queue.give_back(first)  # so that the log closes it
        await ended(master)
        assert not service.holds()
        assert "deleted" in master.status().refused[-1].reason


async def test_master_that_may_send_nothing_more_closes_the_links_of_observers(tmp_path):
    """Its disk has failed, or another node is master."""
    async with hastore.open_master(group_master(tmp_path / "1")) as master:
        async with raw_observer(master) as peer:
            await peer.report(1)
            await eventually(lambda: master.status().observers)
            master.ha_service.disconnect_all("a test")
            await peer.closed_by_master()


async def test_observer_of_the_former_master_goes_on_at_the_new_one(tmp_path):
    """What it has is confirmed, so the new master has it."""
    async with group(tmp_path, 2, observer_listen=ANY_PORT) as (one, two):
        master = await promote(one, two)
        await put(master, 30)
        async with raw_observer(master) as peer:
            await peer.report(1)
            _offset, body = await peer.frame()
            end = len(body)
            assert 0 < end <= master.max_offset
        master = await promote(two, one)
        await put(master, 30)
        async with raw_observer(master) as peer:
            await peer.report(end)
            offset, body = await peer.frame()
            assert offset == end
            assert body


async def test_classic_slave_beyond_the_epochs_start_is_refused(tmp_path):
    """It has a tail that no observer can have: it was a master, or followed one without epochs."""
    async with group(tmp_path, 2, observer_listen=ANY_PORT) as (one, two):
        master = await promote(one, two)
        await put(master, 30)
        master = await promote(two, one)
        tail = master.max_offset + 7
        await put(master, 30)
        for is_refused in (False, True):
            async with raw_observer(master) as peer:
                await peer.report(tail)
                assert await peer.frame() == (tail + 1, b""), "a question"
                await peer.closed_by_master()
            await ended(master)
            assert bool(master.status().refused) is is_refused
        assert f"--trust 127.0.0.1@{tail}" in master.status().refused[-1].hint


async def test_observer_beyond_the_confirm_offset_waits(tmp_path):
    """A new master learns only by acknowledgements what is confirmed; until then it sends none."""
    async with hastore.open_master(group_master(tmp_path / "1", (1, 2))) as master:
        async with hastore.open_slave(group_slave(tmp_path / "2", master)):
            await eventually(lambda: not master.ha_service.sync_state_set.missing())
            await put(master, 5)
        await eventually(master.ha_service.sync_state_set.missing)
        end = await put(master, 5)
    async with (
        hastore.open_master(group_master(tmp_path / "1", (1, 2))) as master,
        raw_observer(master) as peer,
    ):
        assert master.ha_service.confirm_offset() < end
        await peer.report(end)
        assert await peer.frame() == (end, b"")
        longer = await put(master, 5)
        async with hastore.open_slave(group_slave(tmp_path / "2", master)):
            offset, body = await peer.frame()
            while not body:
                offset, body = await peer.frame()
            assert offset == end
            assert offset + len(body) <= longer
        assert not master.status().refused


async def test_node_without_the_role_serves_no_observer(tmp_path):
    """Its port closes each connection, and serves once it is master; a stopped role ends links."""
    async with group(tmp_path, 2, observer_listen=ANY_PORT) as (one, two):
        master = await promote(one, two)
        with trio.fail_after(WITHIN_S):
            sock = await connect(two.ports.observer_address, 5)
            with contextlib.suppress(OSError):
                assert not await sock.recv(1)
            sock.close()
        async with raw_observer(master) as peer:
            await peer.report(1)
            await eventually(lambda: master.status().observers)
            await one.step_down("a test")
            await peer.closed_by_master()


def test_observers_need_a_group():
    """A classic master's slaves are on its HA port."""
    with pytest.raises(ConfigError, match="only a replica group has observers") as caught:
        master_config("d", ha=QUICK, observer_listen=ANY_PORT)
    assert "autoswitch" in caught.value.hint

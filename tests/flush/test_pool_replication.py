"""A master with a TransientStorePool: slaves get committed bytes only, puts wait as usual."""

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.errors import DiskError
from hastore.status import BrokerRole, PutMessageStatus
from tests.patience import WITHIN_S
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import log_bytes, master_config, messages, raw_slave, slave_config
from tests.support.waiting import eventually

POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}


def pool_master(path, **changes):
    store = POOL | changes.pop("store", {})
    return master_config(path, store=store, **changes)


async def test_a_slave_gets_every_byte_over_many_files(tmp_path):
    """Only commits make it send; the slave's log is the master's."""
    async with hastore.open_master(pool_master(tmp_path / "m")) as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            requests = [master.submit(message) for message in messages(1500)]
            statuses = {await request.wait() for request in requests}
            assert statuses == {PutMessageStatus.PUT_OK}
            assert slave.max_offset == master.max_offset == master.commit_log.readable_offset
    assert log_bytes(tmp_path / "m", slave.max_offset) == log_bytes(
        tmp_path / "s", slave.max_offset
    )


async def test_put_waits_only_for_the_commit_and_the_slave(tmp_path):
    """A lone SYNC_MASTER put takes a commit interval, not a slave's timeout."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=600_000)
    async with hastore.open_master(pool_master(tmp_path / "m", ha=ha)) as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for message in messages(5):
                with trio.fail_after(WITHIN_S):
                    assert (await master.put(message)).ok


async def test_no_uncommitted_byte_leaves_the_master(tmp_path):
    """A slave that had one would be ahead of a master that was killed."""
    config = pool_master(
        tmp_path,
        role=BrokerRole.ASYNC_MASTER,
        store={"commit_interval_ms": 60_000, "commit_thorough_interval_ms": 60_000},
    )
    async with hastore.open_master(config) as master:
        assert (await master.put(messages(1)[0])).ok  # the first commit comes at once
        await eventually(lambda: master.commit_log.readable_offset == master.max_offset)
        committed = master.commit_log.readable_offset
        assert (await master.put(messages(1)[0])).ok
        async with raw_slave(master) as slave:
            await slave.report(0)
            frames = [await slave.frame(), await slave.frame()]  # one is a heartbeat
            assert sorted(len(body) for _, body in frames) == [0, committed]
            await slave.report(committed)
            with trio.move_on_after(0.3) as scope:
                await slave.sock.recv(1)
            assert scope.cancelled_caught
            await slave.report(master.max_offset)  # no slave can have that
            await slave.closed_by_master()
        assert master.status().refused


async def test_clean_stop_keeps_every_message(tmp_path):
    """The last flush commits first; the next start finds a clean log."""
    async with hastore.open_master(pool_master(tmp_path, role=BrokerRole.ASYNC_MASTER)) as master:
        for message in messages(700):
            assert (await master.put(message)).ok
        end = master.max_offset
    assert not (tmp_path / "abort").exists()
    async with hastore.open_master(pool_master(tmp_path, role=BrokerRole.ASYNC_MASTER)) as master:
        assert (master.max_offset, master.commit_log.readable_offset) == (end, end)
        assert (await master.put(messages(1)[0])).physic_offset == end


async def test_a_write_error_at_the_commit_is_fail_stop(tmp_path, autojump_clock):
    """From that step on nothing is acknowledged, and ``abort`` stays."""
    world = RealFiles()
    config = pool_master(tmp_path, role=BrokerRole.ASYNC_MASTER)
    statuses = []
    with pytest.raises(DiskError, match="on purpose"):  # noqa: PT012 - the block fails
        async with hastore.open_master(config, env=world.env) as master:
            assert (await master.put(messages(1)[0])).ok
            await trio.sleep(1)
            world.disk.fail("pwrite", DiskError("on purpose", path="X"))
            with trio.CancelScope(shield=True):
                for _ in range(10):
                    statuses.append(master.submit(messages(1)[0]).status)
                    await trio.sleep(0.1)
            await trio.sleep_forever()
    assert statuses[-1] is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert (tmp_path / "abort").exists()

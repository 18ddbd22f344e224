"""What a SYNC_MASTER lets consumers see when its last slave leaves."""

import attrs

import hastore
from hastore.status import PutMessageStatus
from tests.support.nodes.harness import QUICK, master_config, raw_slave
from tests.support.waiting import eventually


async def test_a_put_that_waits_is_not_visible_when_its_slave_leaves(tmp_path):
    """Its producer was not told anything yet; when it is, by the time-out, consumers see it."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=6_000)
    async with hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master:

        def visible():
            return master.message_store.max_offset_in_queue("t", 0)

        result = await master.put(hastore.Message("t", b"alone"))
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        await eventually(lambda: visible() == 1, "the time after a start is over")
        async with raw_slave(master) as slave:
            await slave.report(1)
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            waiting = master.submit(hastore.Message("t", b"waits"))
        await eventually(lambda: not master.status().slaves)
        at_once = await master.put(hastore.Message("t", b"behind it"))
        assert at_once.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        await master.dispatching.reput_message_service.catch_up()
        assert (waiting.status, visible()) == (None, 1)
        await waiting.wait()
        assert waiting.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        await eventually(lambda: visible() == 3, "both are seen")

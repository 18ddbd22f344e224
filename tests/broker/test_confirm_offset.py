"""What consumers can read from a SYNC_MASTER after its last slave has left."""

import attrs

import hastore
from hastore.status import PutMessageStatus
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import master_config, raw_slave
from tests.support.waiting import eventually


async def test_a_waiting_put_stays_invisible_after_its_slave_leaves(tmp_path, autojump_clock):
    """Consumers see it once its producer has been answered with FLUSH_SLAVE_TIMEOUT."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    ha = attrs.evolve(QUICK, slave_timeout_ms=6_000)
    config = master_config(tmp_path / "m", ha=ha)
    async with hastore.open_master(config, env=RealFiles().env) as master:

        def visible():
            return master.message_store.max_offset_in_queue("t", 0)

        result = await master.put(hastore.Message("t", b"alone"))
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        await eventually(lambda: visible() == 1, "the master confirms without a slave", every_s=0.5)
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
        await eventually(lambda: visible() == 3, "all three messages are visible")

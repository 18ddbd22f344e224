"""The lag in seconds comes from marks of the log's end, whatever the wall clock does."""

import attrs
import pytest
import trio

import hastore
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole
from tests.support.env.fake_env import FakeOffload, TrioClock
from tests.support.nodes.harness import master_config


@pytest.mark.parametrize("set_back_s", [0, 3_600])
@pytest.mark.parametrize("burst", [1, 300])
async def test_lag_in_seconds_is_right_after_the_clock_is_set_back(
    tmp_path, autojump_clock, set_back_s, burst
):
    """Store timestamps stand still meanwhile; both a trickle and bursts are marked."""
    clock = TrioClock()
    env = attrs.evolve(real_env(), offload=FakeOffload(), wall_clock=clock)
    config = master_config(tmp_path, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config, env=env) as master:
        await master.put(Message("orders", b"first"))
        clock.off_by_ms -= set_back_s * 1000
        history, ends = master.ha_service.end_history, []
        for _ in range(60):
            ends.append((trio.current_time(), master.max_offset))
            for _ in range(burst):
                await master.put(Message("orders", b"x" * 20))
            await trio.sleep(1)
        now = trio.current_time()
        for back in (1, 2, 10, 50):
            appended, end = ends[-back]
            lag = history.lag(end, now, master.max_offset)
            assert not lag.is_least
            assert lag.seconds == pytest.approx(now - appended, abs=0.2), back
        assert 50 < master.put_message.sampler.append_times.count <= 3 * 62  # sampled, not each one

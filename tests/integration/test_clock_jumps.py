"""Wall clocks that jump: no time-out, heartbeat or acknowledgement depends on them."""

from __future__ import annotations

import attrs
import pytest
import trio

import hastore
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.config import HAConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.log.store_directory import CLOCK_FILE
from hastore_cli.status.check import NagiosState, check_status
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.harness import log_bytes, master_config, slave_config
from tests.support.waiting import eventually

DAY_MS = 86_400_000
HA = HAConfig(
    ha_send_heartbeat_interval_ms=100,
    ha_housekeeping_interval_ms=5_000,
    slave_timeout_ms=60_000,
    ha_reconnect_backoff_min_ms=10,
)


@attrs.define
class JumpingClock:
    """The real wall clock, plus an offset that the test sets."""

    real: object
    off_by_ms: int = 0

    def now_s(self):
        return self.real.now_s() + self.off_by_ms / 1000

    def now_ms(self):
        return self.real.now_ms() + self.off_by_ms

    def boot_s(self):
        return self.real.boot_s()

    def local_name(self, ms):
        return self.real.local_name(ms)


def jumping_env():
    """Return the real environment with a clock that can be set, and that clock."""
    env = real_env()
    clock = JumpingClock(env.wall_clock)
    return attrs.evolve(env, wall_clock=clock), clock


@pytest.mark.parametrize("who", ["master", "slave", "both"])
async def test_clock_jumps_change_no_status_and_end_no_link(tmp_path, who):
    """A day ahead, two days back, to 1970: puts are PUT_OK at once, over the same connection."""
    master_env, master_clock = jumping_env()
    slave_env, slave_clock = jumping_env()
    clocks = {"master": [master_clock], "slave": [slave_clock]}.get(
        who, [master_clock, slave_clock]
    )
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=HA), env=master_env) as master,
        hastore.open_slave(
            slave_config(tmp_path / "s", master.ha_address, ha=HA), env=slave_env
        ) as slave,
    ):
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        for jump_ms in (DAY_MS, -2 * DAY_MS, -master_env.wall_clock.now_ms(), DAY_MS):
            for clock in clocks:
                clock.off_by_ms += jump_ms
            for number in range(10):
                result = await master.put(Message("T", b"%d" % number))
                assert result.status is PutMessageStatus.PUT_OK
            await trio.sleep(0.15)  # a heartbeat
        await eventually(lambda: slave.max_offset == master.max_offset)
        assert slave.status().master_link.connections == 1
        end = master.max_offset
    assert log_bytes(tmp_path / "s", end) == log_bytes(tmp_path / "m", end)


async def test_slave_timeout_ignores_clock_jumps(tmp_path):
    """FLUSH_SLAVE_TIMEOUT comes after slave_timeout of real time."""
    env, clock = jumping_env()
    ha = attrs.evolve(HA, slave_timeout_ms=300, ha_housekeeping_interval_ms=20_000)
    async with hastore.open_master(master_config(tmp_path, ha=ha), env=env) as master:
        sock = trio.socket.socket()
        with sock:
            await sock.connect(master.ha_address)
            await sock.send(bytes(8))  # a slave that acknowledges nothing
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for jump_ms in (DAY_MS, -DAY_MS):
                request = master.submit(Message("T", b"x"))
                begun = trio.current_time()
                clock.off_by_ms += jump_ms
                await request.wait()
                assert request.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                assert 0.25 < trio.current_time() - begun < 60


@pytest.mark.parametrize("who", ["master", "slave"])
async def test_master_and_slave_see_that_their_clocks_differ(tmp_path, who):
    """Each of them by what a slave asks its master each second; and that they agree again."""
    master_env, master_clock = jumping_env()
    slave_env, slave_clock = jumping_env()
    listening = master_config(tmp_path / "m", ha=HA, listen=ANY_PORT)
    async with hastore.open_master(listening, env=master_env) as master:
        settings = slave_config(
            tmp_path / "s",
            master.ha_address,
            ha=HA,
            master_client=("localhost", master.address[1]),
        )
        async with hastore.open_slave(settings, env=slave_env) as slave:
            nodes = {"master": master, "slave": slave}
            await eventually(lambda: all(node.peer_clocks() for node in nodes.values()))
            for node in nodes.values():
                (clock,) = node.peer_clocks()
                assert (clock.host, clock.is_own_machine) == ("127.0.0.1", True)
            assert not any(node.status().clock.in_doubt_because for node in nodes.values())
            wrong = master_clock if who == "master" else slave_clock
            wrong.off_by_ms = 4 * DAY_MS
            reasons = lambda: [  # noqa: E731 - one expression
                node.status().clock.in_doubt_because or "" for node in nodes.values()
            ]
            await eventually(lambda: all("4 days" in reason for reason in reasons()))
            ahead, behind = reasons() if who == "master" else reversed(reasons())
            assert "4 days ahead of the" in ahead
            assert "4 days behind the" in behind
            assert who == "slave" or "the slave at 127.0.0.1" in ahead
            wrong.off_by_ms = 0
            await eventually(lambda: not any(reasons()))


async def test_status_and_check_name_a_store_time_of_next_week(tmp_path):
    """A clock that was ahead once; the clock is right when the node starts again."""
    env, clock = jumping_env()
    clock.off_by_ms = 7 * DAY_MS
    config = master_config(tmp_path, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config, env=env) as master:
        await master.put(Message("T", b"from next week"))
        await eventually((tmp_path / CLOCK_FILE).exists)
    async with hastore.open_master(config) as master:
        await eventually(lambda: master.status().clock.in_doubt_because)
        first = await master.put(Message("T", b"from now"))
        assert first.status is PutMessageStatus.PUT_OK
        status = master.status()
        assert status.clock.store_time_lead_s == pytest.approx(7 * 86_400, abs=60)
        found = {each.what: each for each in findings(status, Limits.of(status))}
        ahead = found["the log's last store time is 7 days ahead of the clock"]
        assert ahead.level is Level.WARNING
        verdict = check_status(status, Limits())
        assert verdict.state is not NagiosState.OK
        assert "7 days ahead of the clock" in verdict.line
        assert "its clock is in doubt" in verdict.line  # the boot clock says that it is behind

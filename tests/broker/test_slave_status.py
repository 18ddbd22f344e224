"""A slave's own view of its lag: from its master's end, and from the age of incoming records."""

from types import SimpleNamespace

import pytest
import trio

from hastore.broker.node import slave_status as module
from hastore.concurrency.recent_least import RecentLeast
from hastore.config import HAConfig
from hastore.errors import RequestFailedError
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand
from tests.support.commands.in_process import at, call_json, master_on, put, slave_of
from tests.support.waiting import eventually

NOW_MS = 1_700_000_000_000
ALL = {"reached_end": True}


def fake_slave(
    *,
    rate,
    newest_ms,
    master_offset=1_000,
    max_offset=1_000,
    read_ago_s=0.0,
    least_age_s=None,
    undispatched=0,
    fault=None,
    linked_s=3_600.0,
    reached_end=False,
):
    """The parts of a slave that the status of its link reads."""
    now = trio.current_time()
    ages = RecentLeast()
    if least_age_s is not None:
        ages.record(least_age_s, now)
    client = SimpleNamespace(
        received=SimpleNamespace(
            flow_monitor=SimpleNamespace(bytes_per_s=lambda _now: rate, total_bytes=7),
            master_offset=master_offset,
            last_news_time=now - read_ago_s,
            connections=1,
        ),
        link=SimpleNamespace(
            last_read_time=now,  # of a heartbeat
            connected_time=now - linked_s,
            frame_sizes=SimpleNamespace(reached_end=reached_end),
            reported_offset=max_offset,
            local_address=("127.0.0.1", 5),
        ),
        config=SimpleNamespace(master=("127.0.0.1", 6), ha=HAConfig()),
        state=SimpleNamespace(value="streaming"),
        reason=None,
        error=None,
    )
    return SimpleNamespace(
        ha_client=client,
        max_offset=max_offset,
        record_ages=ages,
        reput_message_service=SimpleNamespace(
            dispatched_timestamp_ms=newest_ms,
            committed_offset=max_offset - undispatched,
            fault=fault,
        ),
    )


def link_of(slave, now_ms):
    """The link in the status of a slave."""
    return module._link(slave, slave.ha_client, slave.record_ages, now_ms)


@pytest.mark.parametrize(
    ("slave", "lag_bytes", "is_estimate", "lag_s"),
    [
        ({"rate": 0.0, "newest_ms": NOW_MS - 60_000}, 0, False, 0.0),  # no bytes come in
        ({"rate": 1e6, "newest_ms": NOW_MS}, 0, False, 0.0),
        ({"rate": 1e6, "newest_ms": NOW_MS - 60_000}, 60_000_000, True, 60.0),  # catching up
        # A burst that has ended: its records were new when they came.
        ({"rate": 1e6, "newest_ms": NOW_MS - 1_500, "read_ago_s": 1.5}, 0, False, 0.0),
        ({"rate": 1e6, "newest_ms": 0, "max_offset": 900}, 100, False, None),  # no record yet
        ({"rate": 1e6, "newest_ms": NOW_MS + 9_000}, 0, False, 0.0),  # its clock is slow
        ({"rate": 1e6, "newest_ms": NOW_MS, "master_offset": None}, None, False, None),
        # Its clock is a second fast, or slow: all records seem that much older, or newer.
        ({"rate": 2e7, "newest_ms": NOW_MS - 1_010, "least_age_s": 1.0}, 0, False, 0.01),
        ({"rate": 1e6, "newest_ms": NOW_MS + 900, "least_age_s": -1.0}, 100_000, True, 0.1),
        # A lag of a minute that lasts is not mistaken for a wrong clock.
        ({"rate": 1e6, "newest_ms": NOW_MS - 60_000, "least_age_s": 60.0}, 58_000_000, True, 58.0),
        # Received bytes that wait for dispatch, or at which it stopped, are no lag.
        ({"rate": 1e6, "newest_ms": NOW_MS - 500, "undispatched": 490_000}, 0, False, 0.01),
        ({"rate": 1e6, "newest_ms": NOW_MS - 60_000, "fault": "torn"}, 0, False, None),
        # An old record that came at once on a new link, and was all there was.
        ({"rate": 4e3, "newest_ms": NOW_MS - 20_000, **ALL, "linked_s": 0.01}, 0, False, 0.01),
        (
            {"rate": 4e3, "newest_ms": NOW_MS - 20_000, **ALL, "linked_s": 1.51, "read_ago_s": 1.5},
            *(0, False, 0.01),
        ),
        # There was more, or it may have been on its way since the link began.
        ({"rate": 1e6, "newest_ms": NOW_MS - 20_000, "linked_s": 0.01}, 20_000_000, True, 20.0),
        ({"rate": 1e6, "newest_ms": NOW_MS - 20_000, **ALL}, 20_000_000, True, 20.0),
        ({"rate": 1e6, "newest_ms": NOW_MS - 20_000, **ALL, "linked_s": 5.0}, 5_000_000, True, 5.0),
    ],
)
async def test_a_slave_knows_or_estimates_its_lag(
    slave, lag_bytes, is_estimate, lag_s, autojump_clock
):
    """From its master's end and its own; while bytes come in, also from their age and rate."""
    link = link_of(fake_slave(**slave), NOW_MS)
    assert (link.lag_bytes, link.lag_is_estimate) == (lag_bytes, is_estimate)
    assert link.lag_s == (None if lag_s is None else pytest.approx(lag_s, abs=0.002))
    assert link.local_address == "127.0.0.1:5"


async def test_a_slave_in_step_reports_no_lag(tmp_path):
    """Two seconds after the last byte at the latest."""
    async with master_on(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
        await put(master, 10)
        await eventually(lambda: slave.record_ages.least(trio.current_time()) is not None)
        assert -1 < slave.record_ages.least(trio.current_time()) < 30
        await eventually(
            lambda: not slave.ha_client.received.flow_monitor.bytes_per_s(trio.current_time())
        )
        _, reported = await call_json("status", at(slave))
        assert reported["ack_level"] == "received"
        assert (reported["master_link"]["lag_bytes"], reported["master_link"]["lag_s"]) == (0, 0)


async def test_a_slave_that_returns_to_an_idle_master_reports_little_lag(tmp_path):
    """Its newest record is 20 s old, but was all that it lacked."""
    async with master_on(tmp_path / "m") as master:
        async with slave_of(master, tmp_path / "s"):
            await put(master, 10)
        await put(master)
        async with slave_of(master, tmp_path / "s") as slave:
            await eventually(lambda: slave.record_ages.least(trio.current_time()) is not None)
            now_ms = slave.env.wall_clock.now_ms()
            assert slave.ha_client.received.flow_monitor.bytes_per_s(trio.current_time()) > 0
            link = link_of(slave, now_ms + 20_000)
    assert link.newest_record_age_s > 19
    assert link.lag_bytes < master.max_offset


# -- log digests ---------------------------------------------------------------------------------


async def digest(node, **fields):
    """Request a log digest from a node's processor."""
    from hastore.broker.port.admin_processors import AdminProcessors

    texts = {name.rstrip("_"): str(value) for name, value in fields.items()}
    request = RemotingCommand(code=RequestCode.LOG_DIGEST, ext_fields=texts)
    return await AdminProcessors(node, None, node.env.offload).log_digest(request)


async def test_a_digest_covers_only_bytes_that_are_in_the_log(tmp_path):
    """Master and slave return the same for a range of at most 4 MiB; other ranges are refused."""
    async with master_on(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
        await put(master, 10)
        end = master.max_offset
        bodies = [(await digest(node, from_=3, to=end)).body for node in (master, slave)]
        assert bodies[0] == bodies[1]
        assert (await digest(master, from_=0, to=0)).code == ResponseCode.SUCCESS
        for begin, stop in ((-1, 5), (5, 3), (0, end + 1), (end, 2**62), (0, 2**62)):
            with pytest.raises(RequestFailedError, match="no answer about the bytes"):
                await digest(master, from_=begin, to=stop)

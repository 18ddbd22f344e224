"""A refused slave never counts and never stops the master, whatever it sends and when."""

from __future__ import annotations

import attrs
import pytest
import trio

import hastore
from hastore.errors import ExpiredError, ProtocolError
from hastore.status import BrokerRole
from hastore.wire.autoswitch_frames import Handshake
from hastore.wire.ha_frames import REPORT, check_header
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import master_config, messages, raw_slave
from tests.support.waiting import eventually


async def test_refused_peer_that_stays_does_not_stop_the_master(tmp_path, autojump_clock):
    """The refusal takes up to a second; meanwhile the time-out of its first report passes."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    ha = attrs.evolve(QUICK, ha_first_report_timeout_ms=200)
    config = master_config(tmp_path / "m", ha=ha, role=BrokerRole.ASYNC_MASTER)
    async with (
        hastore.open_master(config, env=RealFiles().env) as master,
        raw_slave(master) as peer,
    ):
        await peer.sock.send(b"GET / HT")
        await eventually(lambda: bool(master.status().refused))
        await trio.sleep(0.3)
        assert (await master.put(messages(1)[0])).ok
        assert len(master.status().refused) == 1
        await peer.closed_by_master()


async def test_report_that_arrives_with_the_refusal_is_ignored(tmp_path):
    """Expiry refuses a slave in the pass of the loop that brings its report."""
    async with (
        hastore.open_master(master_config(tmp_path / "m")) as master,
        raw_slave(master) as slave,
    ):
        await slave.report(1)
        request = master.submit(messages(1)[0])
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        (connection,) = master.ha_service.connections.values()
        request = master.submit(messages(1)[0])
        await slave.frame()
        error = ExpiredError("gone", min_offset=1 << 20, slave_offset=1)
        connection.refuse(error)
        connection.refuse(error)
        connection.read_socket_service._handle_reports(REPORT.pack(master.max_offset))
        assert request.status is None
        assert master.status().push2_slave_max_offset == 0
        await slave.closed_by_master()


def test_frame_that_ends_beyond_int64_is_refused():
    """No slave could report its end."""
    with pytest.raises(ProtocolError, match="where no log can be"):
        check_header((1 << 63) - 65_536, 65_536)


async def test_a_node_of_a_group_at_a_classic_master_is_named(tmp_path):
    """Its handshake is no report."""
    async with (
        hastore.open_master(master_config(tmp_path / "m")) as master,
        raw_slave(master) as peer,
    ):
        await peer.sock.send(Handshake(node_id=7, is_learner=True).encode())
        await eventually(lambda: master.ha_service.refusals)
        refusal = master.ha_service.refusals[-1]
        assert "node 7 of a replica group sent a handshake" in refusal.reason
        assert refusal.hint == "start both with the same [ha] protocol"

"""A slave ahead of a RocketMQ 4.9.8 master reports the divergence, not a wrong port.

That master takes a first report beyond its end for an offset, and closes the link at the second.
Its first heartbeat, which shows the divergence, comes a little more than 5 s after the link was
made.  The slave is real; time, network and disk are simulated.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import partial

import attrs
import pytest
import trio

import hastore
from hastore.concurrency.tcp import accept, open_listener
from hastore.sim.cluster import HA_PORT, MASTER, ClusterConfig, SimCluster
from hastore.sim.network import Network
from hastore.sim.seams import run_by_seed
from hastore.sim.sockets import HOST, SimResolver, SimSocketFactory
from hastore.sim.trace import Trace
from hastore.status import BrokerRole, FlushDiskType
from hastore.wire.ha_frames import HEADER, REPORT, REPORT_DIVERGED, REPORT_SIZE
from hastore_cli.doctor.facts import Facts
from hastore_cli.doctor.rules import Result, diagnose
from tests.support.waiting import eventually

HEARTBEAT_S = 5.06  # its loop runs every 0.1 s and waits for more than 5 s
HOUSEKEEPING_S = 20.0
NO_END = 1 << 40
LATENCY_S = 0.5  # more than the simulated network ever takes


@attrs.frozen(kw_only=True)
class Config(ClusterConfig):
    """A slave with RocketMQ's times, except perhaps for its heartbeat."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    master_flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    slave_flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    slaves: int = 1
    mapped_file_size: int = 64 * 1024
    heartbeat_ms: int = 5_000

    def ha(self):
        return attrs.evolve(super().ha(), ha_send_heartbeat_interval_ms=self.heartbeat_ms)


@attrs.define(eq=False)
class StockMaster:
    """RocketMQ 4.9.8's side of HA, for a slave that is ahead of it or in step with it."""

    end: int
    first_word_s: float | None = HEARTBEAT_S  # after the link was made; None: it never sends
    pause_s: float = 0.0  # after each byte of a heartbeat
    closed_at_report: int = 0  # links closed for a report beyond the end
    closed_for_silence: int = 0
    # A list for each link: seconds after the accept, and the reported offset.
    reports: list[list[tuple[float, int]]] = attrs.field(factory=list)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        HOST.set(MASTER)
        listener = await open_listener((MASTER, HA_PORT), "tests")
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                sock, _ = await accept(listener)
                self.reports.append([])
                nursery.start_soon(self._serve, sock, trio.current_time(), self.reports[-1])

    async def _serve(self, sock, accepted, reports):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_heartbeats, sock, accepted, reports)
            with contextlib.closing(sock), contextlib.suppress(OSError):
                while await self._receive_report(sock, accepted, reports):
                    pass
            nursery.cancel_scope.cancel()

    async def _receive_report(self, sock, accepted, reports):
        data = b""
        with trio.move_on_after(HOUSEKEEPING_S) as silence:
            while len(data) < REPORT_SIZE:
                more = await sock.recv(REPORT_SIZE - len(data))
                if not more:
                    return False
                data += more
        if silence.cancelled_caught:
            self.closed_for_silence += 1
            return False
        reports.append((trio.current_time() - accepted, REPORT.unpack(data)[0]))
        if len(reports) > 1 and reports[-1][1] > self.end:
            self.closed_at_report += 1
            return False
        return True

    async def _send_heartbeats(self, sock, accepted, reports):
        if self.first_word_s is None:
            return
        await trio.sleep_until(accepted + self.first_word_s)
        while not reports:
            await trio.sleep(0.1)
        with contextlib.suppress(OSError):
            while True:  # it sends the offset that the slave asked for, not its own end
                word = HEADER.pack(reports[0][1], 0)
                while word:  # a simulated send may be partial
                    word = word[await sock.send(word[:1] if self.pause_s else word) :]
                    await trio.sleep(self.pause_s)
                await trio.sleep(HEARTBEAT_S)


until = partial(eventually, within_s=3_600, every_s=0.1)  # in virtual time


def simulate(test, *, messages=0, heartbeat_ms=5_000, **script):
    """Run ``test`` with a slave that has some messages and then follows the scripted master."""

    async def main():
        trio.socket.set_custom_socket_factory(SimSocketFactory(network))
        trio.socket.set_custom_hostname_resolver(SimResolver())
        former, (slave,) = cluster.master, cluster.slaves
        async with trio.open_nursery() as nursery:
            if messages:
                former.start(nursery)
                slave.start(nursery)
                await eventually(
                    lambda: former.node is not None and slave.node is not None,
                    within_s=3_600,
                    every_s=0.1,
                )
                for _ in range(messages):
                    await former.node.put(hastore.Message("t", b"x" * 300))
                await eventually(
                    lambda: slave.node.max_offset == former.node.max_offset,
                    within_s=3_600,
                    every_s=0.1,
                )
                former.kill()
                slave.kill()
            network.boot(MASTER, 2)
            master = StockMaster(**script)
            await nursery.start(master.run)
            slave.start(nursery)
            await until(lambda: slave.node is not None)
            await test(slave.node, master)
            slave.kill()
            nursery.cancel_scope.cancel()

    choices = random.Random(7)
    network = Network(choices)
    cluster = SimCluster(Config(heartbeat_ms=heartbeat_ms), network, choices, Trace(keeps=False))
    run_by_seed(7, main)


def link_finding(slave):
    """Return what ``hastore doctor`` finds about the slave's link."""
    facts = Facts(name="D2", address=("127.0.0.1", 1), status=slave.status(), took_s=0.001)
    (link,) = [finding for finding in diagnose([facts]) if finding.check == "link"]
    return link


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
def test_slave_ahead_of_a_stock_master_names_the_divergence(pause_s):
    """It waits for the master's whole heartbeat; status and doctor show both offsets."""

    async def test(slave, master):
        await eventually(
            lambda: slave.status().master_link.reason is not None, within_s=3_600, every_s=0.1
        )
        assert "not the same log" in slave.status().master_link.reason
        await until(lambda: slave.status().state == "diverged")
        await until(lambda: len(master.reports[1]) == 2)
        reported = master.reports[0][0][1]
        assert reported > master.end
        assert [[offset for _, offset in link] for link in master.reports] == [
            [reported],
            [reported, REPORT_DIVERGED],
        ]
        assert master.closed_at_report == 0
        link, reason = link_finding(slave), slave.status().master_link.reason
        assert {str(reported), str(slave.max_offset)} <= set(reason.replace(",", "").split())
        assert link.result is Result.BAD
        assert reason in link.what
        assert "port" not in link.next_step
        assert "hastore log diff" in link.next_step

    simulate(test, messages=40, end=300, pause_s=pause_s)


@pytest.mark.parametrize("first_word_s", [0.0, 3.0, HEARTBEAT_S, 8.0])
def test_slave_reports_every_5_s_after_the_masters_first_heartbeat(first_word_s):
    """The second report comes at 5 s, or at once after a later first heartbeat."""

    async def test(_slave, master):
        await eventually(
            lambda: master.reports and len(master.reports[0]) >= 5, within_s=3_600, every_s=0.1
        )
        times = [at for at, _ in master.reports[0]]
        second = max(first_word_s, 5.0)
        assert second - LATENCY_S <= times[1] <= second + LATENCY_S
        for at, later in itertools.pairwise(times[1:]):
            assert 5 - LATENCY_S <= later - at <= 5 + LATENCY_S
        assert len(master.reports) == 1

    simulate(test, end=NO_END, first_word_s=first_word_s)


@pytest.mark.parametrize("heartbeat_ms", [5_000, 9_000, 16_000])
def test_silent_master_gets_a_second_report_within_its_housekeeping(heartbeat_ms):
    """The slave stops waiting for the first heartbeat before the master takes it for dead."""

    async def test(_slave, master):
        await until(lambda: len(master.reports) >= 3)
        assert master.closed_for_silence == 0
        for link in master.reports[:2]:
            assert heartbeat_ms / 1000 - LATENCY_S <= link[1][0] <= 18.0

    simulate(test, heartbeat_ms=heartbeat_ms, end=NO_END, first_word_s=None)


def test_doctor_does_not_blame_the_firewall_before_the_first_heartbeat():
    """It reports that the port is open, and what the slave is waiting for."""

    async def test(slave, master):
        await until(lambda: master.reports and master.reports[0])
        assert slave.status().state == "connecting"
        link = link_finding(slave)
        assert "has sent nothing yet" in link.what
        assert "5 s" in link.next_step

    simulate(test, messages=40, end=300)

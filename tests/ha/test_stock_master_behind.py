"""A slave that is longer than a RocketMQ 4.9.8 master's log: named, not taken for a bad port.

That master takes a first report beyond its end for an offset, and closes the link at the second.
Its first heartbeat, which shows the divergence, comes a little more than 5 s after the link was
made.  All of it in virtual time.
"""

from __future__ import annotations

import contextlib

import attrs
import pytest
import trio

import hastore
from hastore.config import HAConfig
from hastore.status import BrokerRole
from hastore.wire.ha_frames import HEADER, REPORT, REPORT_DIVERGED
from hastore_cli.doctor_facts import Facts
from hastore_cli.doctor_rules import Result, judge
from tests.ha.harness import master_config, messages, raw_master, slave_config

STOCK = HAConfig()  # RocketMQ's times
HEARTBEAT_S = 5.06  # its loop looks after each second's part, and asks for more than 5 s
HOUSEKEEPING_S = 20.0


@attrs.define(eq=False)
class StockMaster:
    """RocketMQ 4.9.8's side of HA, for a slave that is ahead of it, or has all that there is."""

    listener: object
    end: int
    first_word_s: float | None = HEARTBEAT_S  # since the link was made; None: it never speaks
    links: int = 0
    closed_at_report: int = 0  # links that a report beyond the end has ended
    closed_for_silence: int = 0
    # When after the accept, and what; a list for each link.
    reports: list[list[tuple[float, int]]] = attrs.field(factory=list)

    async def run(self):
        async with trio.open_nursery() as nursery:
            while True:
                sock, _ = await self.listener.accept()
                self.links += 1
                self.reports.append([])
                nursery.start_soon(self._serve, sock, trio.current_time(), self.reports[-1])

    async def _serve(self, sock, accepted, reports):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._speak, sock, accepted, reports)
            with sock, contextlib.suppress(OSError):
                while await self._hears_more(sock, accepted, reports):
                    pass
            nursery.cancel_scope.cancel()

    async def _hears_more(self, sock, accepted, reports):
        with trio.move_on_after(HOUSEKEEPING_S) as silence:
            data = await sock.recv(8)  # a report is one segment on this machine
        if silence.cancelled_caught:
            self.closed_for_silence += 1
            return False
        if len(data) < 8:
            return False
        reports.append((trio.current_time() - accepted, REPORT.unpack(data)[0]))
        if len(reports) > 1 and reports[-1][1] > self.end:
            self.closed_at_report += 1
            return False
        return True

    async def _speak(self, sock, accepted, reports):
        if self.first_word_s is None:
            return
        await trio.sleep_until(accepted + self.first_word_s)
        while True:
            if reports:
                with contextlib.suppress(OSError):
                    await sock.send(HEADER.pack(reports[0][1], 0))
            await trio.sleep(HEARTBEAT_S)


@contextlib.asynccontextmanager
async def followed_by(config, **script):
    """Give a slave and the scripted master that it follows."""
    async with raw_master() as listener, trio.open_nursery() as nursery:
        master = StockMaster(listener.listener, **script)
        nursery.start_soon(master.run)
        async with hastore.open_slave(attrs.evolve(config, master=listener.address)) as slave:
            yield slave, master
        nursery.cancel_scope.cancel()


def stock_config(directory, **ha):
    return slave_config(directory, ("127.0.0.1", 1), ha=attrs.evolve(STOCK, **ha))


async def in_virtual_time(condition):
    """Look twice in a virtual second, for a virtual hour."""
    with trio.fail_after(3_600):
        while not condition():
            await trio.sleep(0.5)


async def test_a_slave_longer_than_a_stock_masters_log_names_the_divergence(
    tmp_path, autojump_clock
):
    """It lets the master's heartbeat come first, and says both offsets in status and doctor."""
    former = master_config(tmp_path, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(former) as master:
        for message in messages(40):
            await master.put(message)
    async with followed_by(stock_config(tmp_path), end=300) as (slave, master):
        await in_virtual_time(lambda: slave.status().master_link.reason is not None)
        assert "not the same log" in slave.status().master_link.reason
        await in_virtual_time(lambda: slave.status().state == "diverged")
        reported = master.reports[0][0][1]
        assert reported > master.end
        reason = slave.status().master_link.reason
        assert str(reported) in reason
        assert str(slave.max_offset) in reason
        assert master.links == 2
        assert master.closed_at_report == 0
        assert [offset for _, offset in master.reports[1]] == [reported, REPORT_DIVERGED]
        facts = Facts(given="D2", address=("127.0.0.1", 1), status=slave.status(), took_s=0.001)
        (link,) = [finding for finding in judge([facts]) if finding.check == "link"]
        assert link.result is Result.BAD
        assert reason in link.what
        assert "port" not in link.next_step
        assert "hastore log diff" in link.next_step


@pytest.mark.parametrize("first_word_s", [0.0, 3.0, HEARTBEAT_S, 8.0])
async def test_once_the_master_has_spoken_it_hears_its_slave_as_ever(
    tmp_path, autojump_clock, first_word_s
):
    """At the next fifth second, or at once where that has passed; never later."""
    script = {"end": 1 << 40, "first_word_s": first_word_s}
    async with followed_by(stock_config(tmp_path), **script) as (_, master):
        await in_virtual_time(lambda: len(master.reports[0:1] and master.reports[0]) >= 5)
        times = [at for at, _ in master.reports[0]]
        second = max(first_word_s, 5.0)
        for at, due in zip(times, [0, second, second + 5, second + 10, second + 15], strict=False):
            assert due <= at <= due + 0.5
        assert master.links == 1


@pytest.mark.parametrize("heartbeat_ms", [5_000, 9_000, 16_000])
async def test_a_master_that_never_speaks_hears_its_slave_within_its_housekeeping(
    tmp_path, autojump_clock, heartbeat_ms
):
    """The wait for its first word ends before it takes the slave for dead."""
    config = stock_config(tmp_path, ha_send_heartbeat_interval_ms=heartbeat_ms)
    async with followed_by(config, end=1 << 40, first_word_s=None) as (_, master):
        await in_virtual_time(lambda: master.links >= 3)
        assert master.closed_for_silence == 0
        for link in master.reports[:2]:
            assert heartbeat_ms / 1000 <= link[1][0] <= 18.0


async def test_a_slave_that_waits_for_the_first_word_is_not_sent_to_its_firewall(
    tmp_path, autojump_clock
):
    """``doctor`` says that the port is open, and what is being waited for."""
    async with followed_by(stock_config(tmp_path), end=300) as (slave, master):
        await in_virtual_time(lambda: master.links == 1)
        assert slave.status().state == "connecting"
        facts = Facts(given="D2", address=("127.0.0.1", 1), status=slave.status(), took_s=0.001)
        (link,) = [finding for finding in judge([facts]) if finding.check == "link"]
        assert "has not been heard yet" in link.what
        assert "5 s" in link.next_step

"""A RocketMQ slave with another log, beside simulated clusters: it is refused for good.

Its log is longer than the master's when it first connects.  It does not compare bytes: it appends
and acknowledges whatever it is sent at its end.  At the instant of each PUT_OK the oracle checks
what each node's disk would keep, and this slave is not one of the nodes.
"""

import attrs
import pytest
import trio

from hastore.ha.ha_service import HAService
from hastore.ha.refused_slaves import RefusedSlaves, RefusedSlavesFile
from hastore.sim.cluster import HA_PORT, MASTER
from hastore.sim.faults import Faults
from hastore.sim.simulation import simulate
from hastore.sim.sockets import HOST
from hastore.wire.ha_frames import HEADER, HEADER_SIZE, encode_report

STOCK = "10.0.9.7"
CONNECTS_FOR_S = 60.0
AHEAD_BY = 6_000
SEEDS = (0, 5, 11, 25)


@attrs.define(eq=False)
class StockSlave:
    """RocketMQ's HAClient, with a log that is not the master's."""

    end: int
    refused: int = 0  # links whose frame had another offset than its end
    outgrown: int = 0  # of those, links to a master whose log was already longer
    appended: int = 0  # bytes of the master's log
    master_boots: set[int] = attrs.field(factory=set)

    async def follow(self, sock):
        """Serve one link to its end."""
        await sock.connect((MASTER, HA_PORT))
        await sock.send(encode_report(self.end))
        data = b""
        while True:
            while len(data) < HEADER_SIZE or len(data) < HEADER_SIZE + HEADER.unpack_from(data)[1]:
                more = await sock.recv(65_536)
                if not more:
                    return
                data += more
            offset, size = HEADER.unpack_from(data)
            data = data[HEADER_SIZE + size :]
            if offset != self.end:  # "master pushed offset not equal the max phy offset in slave"
                self.refused += 1
                return
            self.end += size
            self.appended += size
            if size:
                await sock.send(encode_report(self.end))


def let_it_follow(monkeypatch):
    """Run a stock slave beside the faults; return the list that will hold it."""
    run = Faults.run
    slaves = []

    async def connect_repeatedly(cluster):
        HOST.set(STOCK)
        cluster.network.boot(STOCK, 1)
        while trio.current_time() < CONNECTS_FOR_S:
            await trio.sleep(0.5)
            master = cluster.serving_master
            if master is None:
                continue
            if not slaves or not slaves[0].refused:  # no master has seen it ahead yet
                slaves[:] = [StockSlave(master.max_offset + AHEAD_BY)]
            (slave,) = slaves
            is_outgrown, refused = master.max_offset > slave.end, slave.refused
            sock = trio.socket.socket()
            try:
                with trio.move_on_after(30.0):
                    await slave.follow(sock)
            except OSError:
                pass
            finally:
                sock.close()
            slave.outgrown += is_outgrown and slave.refused > refused
            slave.master_boots.add(cluster.master.boots)

    async def run_with_slave(self):
        self.nursery.start_soon(connect_repeatedly, self.target.cluster)
        await run(self)

    monkeypatch.setattr(Faults, "run", run_with_slave)
    return slaves


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stock_slave_of_another_log_is_sent_nothing(monkeypatch, seed):
    """It is refused while it is ahead of the master, and also when it no longer is."""
    slaves = let_it_follow(monkeypatch)
    result = simulate(seed)
    assert result.ok, result.violation
    (slave,) = slaves
    assert slave.outgrown
    assert len(slave.master_boots) > 1
    assert not slave.appended


def forgets(patch):
    """Refuse the slave only as long as it is ahead."""
    patch.setattr(HAService, "check_first_report", lambda *_: None)


def forgets_at_a_restart(patch):
    """Do not read the file of refused slaves."""
    patch.setattr(RefusedSlaves, "from_json", classmethod(lambda cls, *_: (cls(), None)))


def never_writes(patch):
    """Do not write the file of refused slaves."""

    async def run(_self):
        await trio.sleep_forever()

    patch.setattr(RefusedSlavesFile, "run", run)


@pytest.mark.parametrize("plant", [forgets, forgets_at_a_restart, never_writes])
def test_a_master_that_forgets_a_refusal_is_found(monkeypatch, plant):
    """Within these seeds the oracle finds a false ack, or the slave is sent bytes."""
    plant(monkeypatch)
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            slaves = let_it_follow(patch)
            result = simulate(seed)
        if not result.ok:
            assert result.violation.name == "ack"
            return
        if slaves[0].appended:
            return
    pytest.fail(f"{plant.__name__} was not found")

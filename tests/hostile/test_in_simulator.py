"""Strangers at the HA port of simulated clusters, beside all other faults: every rule still holds.

At the instant of each PUT_OK the oracle looks into what each node's disk would keep, so an ack that
a stranger had forged would be seen.
"""

import random

import pytest
import trio

from hastore.sim.cluster import HA_PORT, MASTER
from hastore.sim.faults import Faults
from hastore.sim.simulation import simulate
from hastore.sim.sockets import HOST
from tests.hostile.corpus_files import mutated
from tests.hostile.handmade import HA_PORT as STREAMS

STRANGER = "10.0.9.9"
COMES_FOR_S = 60.0
SEEDS = (1, 4, 7, 10)


def let_strangers_in(monkeypatch, seed):
    """Let them come with the faults; gives the list in which their visits are counted."""
    run = Faults.run
    visits = []

    async def visit(choices):
        stream = choices.choice([stream for stream in STREAMS.values() if stream])
        if choices.randrange(2):
            stream = mutated(stream, list(STREAMS.values())[:2], choices)
        sock = trio.socket.socket()
        try:
            with trio.move_on_after(choices.uniform(0.1, 8.0)):
                await sock.connect((MASTER, HA_PORT))
                visits.append(len(stream))
                await sock.send(stream[:4096])
                while await sock.recv(65_536):
                    pass
        except OSError:
            pass
        finally:
            sock.close()

    async def come(network):
        HOST.set(STRANGER)
        network.boot(STRANGER, 1)
        choices = random.Random(seed)
        while trio.current_time() < COMES_FOR_S:
            await visit(choices)
            await trio.sleep(choices.uniform(0.1, 2.0))

    async def run_with_strangers(self):
        self.nursery.start_soon(come, self.cluster.network)
        await run(self)

    monkeypatch.setattr(Faults, "run", run_with_strangers)
    return visits


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_holds_with_strangers_at_the_ha_port(seed, monkeypatch):
    """Kills, cuts, full disks, and somebody who says what no slave would: nothing is lost."""
    visits = let_strangers_in(monkeypatch, seed)
    result = simulate(seed)
    assert result.ok, f"seed {seed}: {result.violation}"
    assert len(visits) >= 3

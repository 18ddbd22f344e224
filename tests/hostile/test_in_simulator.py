"""A hostile peer at the HA port of simulated clusters, beside all other faults: every rule holds.

At the instant of each PUT_OK the oracle checks what each node's disk would keep, so it would find
an ack that the peer had forged.
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

HOSTILE_HOST = "10.0.9.9"
VISITS_FOR_S = 60.0
SEEDS = (1, 4, 7, 10)


def add_hostile_peer(monkeypatch, seed):
    """Add a hostile peer to the faults; return the list in which its visits are counted."""
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

    async def keep_visiting(network):
        HOST.set(HOSTILE_HOST)
        network.boot(HOSTILE_HOST, 1)
        choices = random.Random(seed)
        while trio.current_time() < VISITS_FOR_S:
            await visit(choices)
            await trio.sleep(choices.uniform(0.1, 2.0))

    async def run_with_peer(self):
        self.nursery.start_soon(keep_visiting, self.target.network)
        await run(self)

    monkeypatch.setattr(Faults, "run", run_with_peer)
    return visits


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_passes_with_a_hostile_peer_at_the_ha_port(seed, monkeypatch):
    """Beside kills, power cuts and full disks a peer sends what no slave would: nothing is lost."""
    visits = add_hostile_peer(monkeypatch, seed)
    result = simulate(seed)
    assert result.ok, f"seed {seed}: {result.violation}"
    assert len(visits) >= 3

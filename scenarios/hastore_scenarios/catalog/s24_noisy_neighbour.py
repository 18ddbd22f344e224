"""24: a topic that does not wait, beside one that does."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=24,
    title="A noisy neighbour",
    proves=(
        "puts that wait for a slave are PUT_OK and quick while another topic floods the log with"
        " WAIT=false"
    ),
)
async def noisy_neighbour(world: World) -> None:
    """The flood is replicated, too: it is in the same log, before and after the quiet puts."""
    # A time-out far above the expected latency, on a busy machine too, which is checked below.
    config: dict[str, Any] = {"mapped_file_size": 4 * 1024 * 1024, "slave_timeout_ms": 60_000}
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    async with world.load(master, topic="Noisy", size=4_000, in_flight=32, wait=False) as noise:
        await world.wait_until(master, "the flood flows", lambda s: s.max_offset > 400_000)
        quiet = [await world.put(master, topic="Quiet") for _ in range(40)]
    world.expect(
        all(put.status is PutMessageStatus.PUT_OK for put in quiet),
        "every put that waits is acknowledged by the slave",
        counts=noise,
    )
    slowest_s = max((put.completed_s or 0.0) - put.invoked_s for put in quiet)
    world.expect(
        slowest_s < 18.0, "none of them is near its timeout", slowest_s=round(slowest_s, 3)
    )
    world.expect(noise.all_are(PutMessageStatus.PUT_OK), "the flood is stored, too", counts=noise)
    await world.wait_healthy(slave)

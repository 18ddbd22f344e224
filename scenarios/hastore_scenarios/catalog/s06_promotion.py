"""06: the master is killed, its slave takes over."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=6,
    title="Master killed, slave promoted",
    proves="every PUT_OK message is in the promoted slave's log, and it takes new ones",
)
async def promotion(world: World) -> None:
    """A kill -9 in mid-stream; messages without an answer may be in the former master's log."""
    master = await world.start_master("a")
    slave = await world.start_slave("b", master=master)
    await world.wait_healthy(slave)

    async with world.load(master, in_flight=32) as load:
        await world.wait_until(
            slave, "a stream is flowing", lambda status: status.max_offset > 500_000
        )
        await world.kill(master)
    world.expect(load.counts.get("PUT_OK", 0) > 0, "hundreds were acknowledged before", counts=load)

    await world.promote(slave)
    alone = await world.put(slave)
    world.expect(
        alone.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "the new master serves, alone for now",
        status=alone.label,
    )
    other = await world.start_slave("c", master=slave)
    await world.wait_healthy(other)
    tally = await world.put_many(slave, 100)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "with a slave of its own", counts=tally)

"""08: the acknowledgement of a slave that left says nothing about the slaves that are connected."""

from __future__ import annotations

from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario

FALLBEHIND_MAX = 128 * 1024


@scenario(
    number=8,
    title="A departed slave's acknowledgement",
    proves=(
        "only the slaves that are connected now decide whether one is available: the ack of one"
        " that left never makes another that is far behind look healthy"
    ),
)
async def departed_ack(world: World) -> None:
    """Slave b acknowledges everything and leaves; c, far behind, is all that remains.

    RocketMQ compares with push2SlaveMaxOffset, the highest ack that any slave ever sent: it would
    wait for c in vain, and answer every put FLUSH_SLAVE_TIMEOUT instead of SLAVE_NOT_AVAILABLE.
    """
    master = await world.start_master("a", ha_slave_fallbehind_max=FALLBEHIND_MAX)
    laggard = await world.start_slave("c", master=master)
    await world.wait_healthy(laggard)
    world.link(laggard).cut(LinkMode.CUT_TO_SLAVE)

    good = await world.start_slave("b", master=master)
    await world.wait_healthy(good)
    tally = await world.put_many(master, 300)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "one good slave is enough", counts=tally)
    before = await world.status(master)

    await world.stop(good)
    after = await world.wait_until(
        master, "only the laggard is left", lambda status: len(status.slaves) == 1
    )
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "the laggard is too far behind to count",
        status=put.label,
        lag=after.slaves[0].lag_bytes,
    )
    world.expect(
        (after.push2_slave_max_offset or 0) >= (before.push2_slave_max_offset or 0),
        "push2_slave_max_offset never falls",
        pushed=after.push2_slave_max_offset,
    )

    world.link(laggard).heal()
    await world.wait_healthy(laggard)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "it has caught up", status=put.label)

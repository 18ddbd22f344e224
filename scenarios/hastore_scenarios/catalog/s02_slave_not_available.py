"""02: no slave is connected."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=2,
    title="No slave available",
    proves="without a slave a sync put is stored and answered SLAVE_NOT_AVAILABLE, at once",
)
async def slave_not_available(world: World) -> None:
    """Before the first slave, with one, after its kill, and after its restart."""
    master = await world.start_master("a")
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "no slave has connected yet",
        status=put.label,
    )
    assert put.completed_s is not None
    took_s = put.completed_s - put.invoked_s
    world.expect(took_s < 1.5, "the answer did not wait for slave_timeout", took_s=round(took_s, 3))

    no_wait = await world.put(master, wait=False)
    world.expect(
        no_wait.status is PutMessageStatus.PUT_OK,
        "WAIT=false needs no slave",
        status=no_wait.label,
    )

    slave = await world.start_slave("b", master=master)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "with a slave", status=put.label)

    await world.kill(slave)
    await world.wait_until(master, "the slave is gone", lambda status: not status.slaves)
    tally = await world.put_many(master, 20)
    world.expect(tally.all_are(PutMessageStatus.SLAVE_NOT_AVAILABLE), "after kill -9", counts=tally)

    await world.restart(slave)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "it came back", status=put.label)

"""23: every node is restarted, one after the other."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=23,
    title="A rolling restart",
    proves=(
        "while slaves are restarted one by one, every put is PUT_OK; while the master is"
        " restarted, no acknowledged put is lost"
    ),
)
async def rolling_restart(world: World) -> None:
    """As a new version is installed: slaves first, each back before the next is stopped."""
    master = await world.start_master("a", slave_timeout_ms=5_000)
    slaves = [await world.start_slave(name, master=master) for name in "bc"]
    for slave in slaves:
        await world.wait_healthy(slave)

    async with world.load(master, in_flight=4, size=300) as load:
        for slave in slaves:
            await world.stop(slave)
            await world.restart(slave)
            await world.wait_until(
                master,
                "two slaves are connected",
                lambda s: sum(row.state == "streaming" for row in s.slaves) == 2,
            )
    world.expect(load.all_are(PutMessageStatus.PUT_OK), "no producer is affected", counts=load)
    async with world.load(master, in_flight=4, size=300) as load:
        await world.stop(master)
        await world.restart(master)
        restarted_s = world.now_s
        await world.wait_until(
            master,
            "puts are PUT_OK again",
            lambda _: any(
                put.invoked_s > restarted_s and put.status is PutMessageStatus.PUT_OK
                for put in load.operations
            ),
        )
    for slave in slaves:
        await world.wait_healthy(slave)
    tally = await world.put_many(master, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "all are back", counts=tally, during=load)

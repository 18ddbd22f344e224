"""05: a slave catches up."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario

FILE_SIZE = 64 * 1024


@scenario(
    number=5,
    title="Catching up",
    proves=(
        "a slave copies everything from its own end on: from zero, from the middle of a file,"
        " across file ends, while new messages arrive"
    ),
)
async def slave_catches_up(world: World) -> None:
    """Files of 64 KiB, so that each part crosses many ends; bodies of 1 byte to half a file."""
    master = await world.start_master("a", mapped_file_size=FILE_SIZE)
    for size in (1, 100, 1_024, 10_000, FILE_SIZE // 2):
        await world.put_many(master, 40, size=size)

    world.say("from zero")
    slave = await world.start_slave("b", master=master, mapped_file_size=FILE_SIZE)
    await world.wait_healthy(slave)
    status = await world.status(slave)
    world.expect(
        status.mapped_files > 10, "a new slave has the whole history", files=status.mapped_files
    )

    world.say("from the middle")
    await world.kill(slave)
    await world.put_many(master, 300, size=700)
    await world.restart(slave)
    await world.wait_healthy(slave)

    world.say("across file ends, under load, the stream cut into pieces of 1000 bytes")
    await world.stop(slave)
    await world.put_many(master, 200)
    world.link(slave).split(1_000)
    async with world.load(master, in_flight=8) as load:
        await world.restart(slave)
        await world.wait_until(
            master,
            "the slave answers sync puts again",
            lambda _: any(put.status is PutMessageStatus.PUT_OK for put in load.operations),
        )
    world.expect(
        load.counts.get("PUT_OK", 0) > 0, "puts became PUT_OK while it caught up", counts=load
    )

    world.say("another one from zero, while the first streams on")
    world.link(slave).heal()
    other = await world.start_slave("c", master=master, mapped_file_size=FILE_SIZE)
    await world.wait_healthy(other)
    await world.wait_healthy(slave)

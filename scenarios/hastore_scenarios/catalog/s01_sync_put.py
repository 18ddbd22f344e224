"""01: a sync put."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=1,
    title="A sync put",
    proves="PUT_OK from a SYNC_MASTER means that a slave has the message too",
)
async def sync_put(world: World) -> None:
    """One message, then a thousand with 64 in flight, over the ends of several files."""
    master = await world.start_master("a", mapped_file_size=256 * 1024)
    slave = await world.start_slave("b", master=master, mapped_file_size=256 * 1024)
    await world.wait_healthy(slave)

    put = await world.put(master, b"hello")
    world.expect(put.status is PutMessageStatus.PUT_OK, "the put is PUT_OK", status=put.label)
    status = await world.status(slave)
    world.expect(
        put.physic_offset is not None and status.max_offset > put.physic_offset,
        "the slave already has it",
        slave_at=status.max_offset,
    )

    tally = await world.put_many(master, 1_000, in_flight=64)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "so are a thousand more", counts=tally)
    status = await world.status(master)
    world.expect(status.mapped_files >= 4, "they fill several files", files=status.mapped_files)

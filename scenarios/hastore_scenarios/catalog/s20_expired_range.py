"""20: the next bytes that the slave needs have expired on the master."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario

FILE_SIZE = 64 * 1024


@scenario(
    number=20,
    title="An expired range, and a new seed",
    proves=(
        "a slave that was away for longer than the master keeps files is refused with the reason,"
        " and copies what is left once it starts with an empty disk"
    ),
)
async def expired_range(world: World) -> None:
    """If the slave appended after a gap, its offsets would look right, but messages be missing."""
    master = await world.start_master("a", mapped_file_size=FILE_SIZE)
    slave = await world.start_slave("b", master=master, mapped_file_size=FILE_SIZE)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 30)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both have thirty", counts=tally)

    await world.stop(slave)
    stopped_at = (await world.status(master)).max_offset
    await world.put_many(master, 300)
    await world.stop(master)
    await world.disk(master).expire(3)
    await world.restart(master)
    begins_at = (await world.status(master)).min_offset
    world.expect(
        begins_at == 3 * FILE_SIZE > stopped_at,
        "three files are gone, with the next bytes that the slave needs",
        begins_at=begins_at,
        slave_at=stopped_at,
    )
    await world.restart(slave)
    status = await world.wait_until(
        slave,
        "the slave reports that it cannot go on",
        lambda s: s.master_link is not None and s.master_link.state == "failed",
    )
    assert status.master_link is not None
    world.expect(
        status.max_offset == stopped_at and status.master_link.hint,
        "it keeps its log, and its status says what to do",
        reason=status.master_link.reason,
        hint=status.master_link.hint,
    )
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE, "it does not count", status=put.label
    )

    await world.stop(slave)
    await world.disk(slave).wipe()
    await world.restart(slave)
    await world.wait_healthy(slave)
    status = await world.status(slave)
    world.expect(
        status.min_offset == begins_at,
        "its log begins where the master's does now",
        begins_at=status.min_offset,
    )
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "and it counts", status=put.label)

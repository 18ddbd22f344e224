"""13: the slave's disk is full."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import PutMessageStatus, World, scenario

FILE_SIZE = 64 * 1024


@scenario(
    number=13,
    title="The slave's disk is full",
    proves=(
        "a slave with a full disk acknowledges only what it has stored, reports the lack of space,"
        " stays up, and goes on by itself once there is room"
    ),
)
async def slave_disk_full(world: World) -> None:
    """The slave fills its files to the end, but cannot create the next one."""
    config: dict[str, Any] = {"mapped_file_size": FILE_SIZE, "slave_timeout_ms": 1_000}
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, faulty_disk=True, **config)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 10)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "before", counts=tally)

    world.disk(slave).full()
    tally = await world.put_many(master, 20)
    world.expect(
        tally.all_are(PutMessageStatus.PUT_OK),
        "there is room in the current file",
        counts=tally,
    )
    tally = await world.put_many(master, 300, in_flight=150)
    world.expect(
        tally.counts.get("PUT_OK", 0) * 1024 < 2 * FILE_SIZE,
        "there is no room for the rest",
        counts=tally,
    )
    status = await world.wait_until(
        slave,
        "the slave reports the lack of space",
        lambda s: s.master_link is not None and "space" in (s.master_link.reason or ""),
    )
    await world.wait_until(master, "it no longer counts as a slave", lambda s: not s.slaves)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "the master goes on without it",
        status=put.label,
        slave_at=status.max_offset,
    )

    world.disk(slave).heal()
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "there is room again", status=put.label)

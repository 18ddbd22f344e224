"""15: the slave's disk fails an fsync."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import FlushDiskType, PutMessageStatus, World, scenario


@scenario(
    number=15,
    title="The slave's fsync fails",
    proves=(
        "a failed fsync ends the slave's process without an acknowledgement; the next start trusts"
        " only what was on the disk"
    ),
)
async def slave_sync_fails(world: World) -> None:
    """EIO once: afterwards Linux marks the lost pages clean, and the next fsync succeeds."""
    config: dict[str, Any] = {"slave_timeout_ms": 1_500}
    sync = FlushDiskType.SYNC_FLUSH
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, flush=sync, faulty_disk=True, **config)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "before", counts=tally)

    world.disk(slave).fail_sync()
    # Whole sectors: one shared with the next message would be written again with that.
    put = await world.put(master, b"x" * 5_000)
    world.expect(
        put.status in {PutMessageStatus.FLUSH_SLAVE_TIMEOUT, PutMessageStatus.SLAVE_NOT_AVAILABLE},
        "a message that could not be forced to the disk is not acknowledged",
        status=put.label,
    )
    code = await world.wait_exit(slave)
    world.expect(code == 1, "the slave has ended by itself", exit_code=code)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE, "it is gone", status=put.label)

    world.disk(slave).heal()
    await world.restart(slave)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "with a disk that works", counts=tally)

"""14: the slave's disk is slow."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import FlushDiskType, PutMessageStatus, World, scenario

SYNC_S = 2.5


@scenario(
    number=14,
    title="The slave's disk is slow",
    proves=(
        "a put is not PUT_OK if its slave takes too long to force it to the disk; the link stays,"
        " and puts that do not wait for a slave are not delayed"
    ),
)
async def slave_disk_slow(world: World) -> None:
    """Each sync takes 2.5 s, a put waits for 1.2 s, and heartbeats are sent meanwhile."""
    config: dict[str, Any] = {
        "slave_timeout_ms": 1_200,
        "ha_send_heartbeat_interval_ms": 100,
        "ha_housekeeping_interval_ms": 2_000,
    }
    sync = FlushDiskType.SYNC_FLUSH
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, flush=sync, faulty_disk=True, **config)
    await world.wait_healthy(slave)
    before = (await world.status(slave)).master_link
    assert before is not None

    world.disk(slave).slow(SYNC_S)
    for _ in range(3):
        put = await world.put(master)
        world.expect(
            put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
            "it has the bytes, but not on its disk",
            status=put.label,
        )
    quick = await world.put(master, wait=False)
    assert quick.completed_s is not None
    took_s = quick.completed_s - quick.invoked_s
    world.expect(
        quick.status is PutMessageStatus.PUT_OK and took_s < SYNC_S / 2,
        "a put that does not wait for slaves is not delayed",
        took_s=round(took_s, 3),
    )
    link = (await world.status(slave)).master_link
    world.expect(
        link is not None and link.state == "streaming" and link.connections == before.connections,
        "a slow disk has not broken the link",
        link=link,
    )

    world.disk(slave).heal()
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "the disk is quick again", status=put.label)

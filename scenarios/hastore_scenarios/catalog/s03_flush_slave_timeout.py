"""03: the slave is frozen."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import PutMessageStatus, World, scenario

SLAVE_TIMEOUT_S = 1.5


@scenario(
    number=3,
    title="A frozen slave",
    proves=(
        "a put that no slave acknowledges in time is answered FLUSH_SLAVE_TIMEOUT, kept, and copied"
        " once the slave runs on"
    ),
)
async def flush_slave_timeout(world: World) -> None:
    """SIGSTOP leaves the connection open: first the put times out, then the connection."""
    config: dict[str, Any] = {
        "slave_timeout_ms": int(SLAVE_TIMEOUT_S * 1000),
        "ha_send_heartbeat_interval_ms": 300,
        "ha_housekeeping_interval_ms": 5_000,
    }
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    await world.pause(slave)
    tally = await world.put_many(master, 10, in_flight=10)
    world.expect(
        tally.all_are(PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
        "the connection is open, so each waits its full time",
        counts=tally,
    )
    slowest_s = max((put.completed_s or 0.0) - put.invoked_s for put in tally.operations)
    world.expect(
        slowest_s < 2 * SLAVE_TIMEOUT_S,
        "ten puts wait together, not one after the other",
        slowest_s=round(slowest_s, 2),
    )

    await world.wait_until(master, "the silent slave is gone", lambda status: not status.slaves)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "after housekeeping the slave no longer counts",
        status=put.label,
    )

    await world.resume(slave)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "it runs on", status=put.label)

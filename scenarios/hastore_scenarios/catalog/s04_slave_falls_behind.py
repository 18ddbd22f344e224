"""04: the slave is too far behind to count."""

from __future__ import annotations

from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario

FALLBEHIND_MAX = 256 * 1024


@scenario(
    number=4,
    title="A slave that falls behind",
    proves=(
        "a connected slave further behind than ha_slave_fallbehind_max is not available until it"
        " has caught up"
    ),
)
async def slave_falls_behind(world: World) -> None:
    """The link holds the log back while the slave's reports still pass, so it stays connected."""
    master = await world.start_master("a", ha_slave_fallbehind_max=FALLBEHIND_MAX)
    slave = await world.start_slave("b", master=master)
    await world.wait_healthy(slave)

    world.link(slave).cut(LinkMode.CUT_TO_SLAVE)
    near = await world.put(master)
    world.expect(
        near.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        "below the limit the put waits for the slave",
        status=near.label,
    )
    await world.put_many(master, 300, wait=False)
    far = await world.put(master)
    world.expect(
        far.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "beyond the limit it does not",
        status=far.label,
    )
    status = await world.status(master)
    lags = [row.lag_bytes for row in status.slaves]
    world.expect(
        len(lags) == 1 and lags[0] is not None and lags[0] > FALLBEHIND_MAX,
        "the slave is still connected, and status shows how far behind it is",
        lags=lags,
    )

    world.link(slave).heal()
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "it caught up", status=put.label)

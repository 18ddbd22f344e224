"""10: the network passes one way only."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario


@scenario(
    number=10,
    title="A partition in one direction",
    proves=(
        "bytes that arrive without a report are not acknowledged, and each side notices the"
        " other's silence within its housekeeping time"
    ),
)
async def one_way_partition(world: World) -> None:
    """First the slave's reports are held back, then the master's log and heartbeats."""
    config: dict[str, Any] = {
        "slave_timeout_ms": 1_500,
        "ha_send_heartbeat_interval_ms": 200,
        "ha_housekeeping_interval_ms": 4_000,
        "ha_connect_timeout_ms": 1_000,
    }
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    world.say("the log still flows, the reports do not")
    world.link(slave).cut(LinkMode.CUT_TO_MASTER)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        "no report says that the slave has it",
        status=put.label,
    )
    end = (await world.status(master)).max_offset
    await world.wait_until(slave, "the slave has it all the same", lambda s: s.max_offset == end)
    await world.wait_until(master, "a silent slave is disconnected", lambda s: not s.slaves)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "from then on no put waits for it",
        status=put.label,
    )
    world.link(slave).heal()
    await world.wait_healthy(slave)

    world.say("the reports still flow, the log does not")
    world.link(slave).cut(LinkMode.CUT_TO_SLAVE)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "the slave has not", status=put.label
    )
    await world.wait_until(
        slave,
        "the slave leaves the silent master",
        lambda s: s.master_link is not None and s.master_link.state != "streaming",
    )
    world.link(slave).heal()
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.PUT_OK, "both ways are open again", status=put.label
    )

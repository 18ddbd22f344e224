"""11: one end of a connection is gone, and the other does not know."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=11,
    title="A half-open link",
    proves=(
        "a peer that died behind a partition is noticed by its silence, from both sides, and its"
        " open socket never counts as a slave for longer than that"
    ),
)
async def half_open_link(world: World) -> None:
    """No FIN and no RST passes a partition: the kernel shows the connection as good for hours."""
    config: dict[str, Any] = {
        "slave_timeout_ms": 1_500,
        "ha_send_heartbeat_interval_ms": 200,
        "ha_housekeeping_interval_ms": 4_000,
        "ha_connect_timeout_ms": 1_000,
    }
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    world.link(slave).cut()
    await world.kill(slave)
    status = await world.status(master)
    world.expect(len(status.slaves) == 1, "to the master the dead slave is still there")
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "it is waited for", status=put.label
    )
    await world.wait_until(master, "its silence ends the connection", lambda s: not s.slaves)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE, "then not any more", status=put.label
    )
    world.link(slave).heal()
    await world.restart(slave)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "it came back", status=put.label)

    world.say("now the master dies behind the partition")
    world.link(slave).cut()
    await world.kill(master)
    link = (await world.status(slave)).master_link
    world.expect(
        link is not None and link.state == "streaming", "to the slave it is still there", link=link
    )
    await world.wait_until(
        slave,
        "the slave notices its silence",
        lambda s: s.master_link is not None and s.master_link.state != "streaming",
    )
    world.link(slave).heal()
    await world.restart(master)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "both are back", status=put.label)

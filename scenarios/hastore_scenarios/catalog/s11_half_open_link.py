"""11: one end of a connection is gone, and the other has no notice of it."""

from __future__ import annotations

from typing import Any

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=11,
    title="A half-open link",
    proves=(
        "each side notices by its silence that a peer has died behind a partition, and its open"
        " socket counts as a slave no longer than that"
    ),
)
async def half_open_link(world: World) -> None:
    """A partition holds FIN and RST back: for hours, the kernel shows an open connection."""
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
    world.expect(len(status.slaves) == 1, "the master still counts the dead slave")
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT, "the put waits", status=put.label
    )
    await world.wait_until(master, "its silence ends the connection", lambda s: not s.slaves)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE, "then it does not", status=put.label
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
        link is not None and link.state == "streaming", "the slave still has its link", link=link
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

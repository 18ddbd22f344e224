"""12: links clog one after the other, and open again in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

# The order in which links clog and open: the last to clog is the first, second or last to open.
ROUNDS: Final = (
    (LinkMode.CUT, "bdc", "cbd"),
    (LinkMode.CUT_TO_SLAVE, "cbd", "bdc"),
    (LinkMode.CUT_TO_MASTER, "dcb", "dcb"),
)


@scenario(
    number=12,
    title="Swizzle-clog",
    proves=(
        "one open link of three is enough for PUT_OK, with none a put is FLUSH_SLAVE_TIMEOUT, in"
        " whatever order they clog and open; all slaves catch up"
    ),
)
async def swizzle_clog(world: World) -> None:
    """FoundationDB's best-known test, under constant load."""
    config: dict[str, Any] = {"slave_timeout_ms": 1_500, "ha_housekeeping_interval_ms": 20_000}
    master = await world.start_master("a", **config)
    slaves = {name: await world.start_slave(name, master=master, **config) for name in "bcd"}
    for slave in slaves.values():
        await world.wait_healthy(slave)

    async with world.load(master, in_flight=4):
        for mode, clogged, opened in ROUNDS:
            for count, name in enumerate(clogged, 1):
                world.link(slaves[name]).cut(mode)
                if count < len(clogged):
                    put = await world.put(master)
                    world.expect(
                        put.status is PutMessageStatus.PUT_OK,
                        f"{len(clogged) - count} of three can acknowledge",
                        status=put.label,
                    )
            put = await world.put(master)
            world.expect(
                put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
                "three are connected, but none can",
                status=put.label,
            )
            end = (await world.status(master)).max_offset
            for count, name in enumerate(opened, 1):

                def acknowledge(status: NodeStatus, count: int = count, end: int = end) -> bool:
                    return sum((row.ack_offset or 0) >= end for row in status.slaves) >= count

                world.link(slaves[name]).heal()
                await world.wait_until(master, f"{name} acknowledges everything", acknowledge)
                put = await world.put(master)
                world.expect(
                    put.status is PutMessageStatus.PUT_OK, f"{name} is open", status=put.label
                )
    for slave in slaves.values():
        await world.wait_healthy(slave)

"""17: a crash leaves half a message at the end of a log, first a slave's, then the master's."""

from __future__ import annotations

from typing import Any

import trio

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=17,
    title="A torn tail",
    proves=(
        "half a message at the end of a log is trimmed at the next start, on a slave and on a"
        " master, and nothing below it is changed"
    ),
)
async def torn_tail(world: World) -> None:
    """The last bytes are zeros, as if they had never reached the disk."""
    config: dict[str, Any] = {"slave_timeout_ms": 10_000, "ha_housekeeping_interval_ms": 1_000}
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 6)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both have six messages", counts=tally)

    world.say("the slave's last message is torn")
    await world.kill(slave)
    await world.disk(slave).tear(500)
    await world.restart(slave)
    await world.wait_healthy(slave)
    end = (await world.status(master)).max_offset
    status = await world.status(slave)
    world.expect(status.max_offset == end, "it was fetched again", ends_at=status.max_offset)

    world.say("the master's last message, not yet answered, is torn")
    world.link(slave).cut()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.put, master)
        await world.wait_until(master, "it waits", lambda s: s.waiting_for_slave == 1)
        torn_end = (await world.status(master)).max_offset
        await world.kill(master)
    await world.wait_until(
        slave,
        "the slave closes its link, with the bytes that were on their way",
        lambda s: s.master_link is not None and s.master_link.state != "streaming",
    )
    await world.disk(master).tear(60)
    await world.restart(master)
    status = await world.status(master)
    world.expect(
        status.max_offset == end < torn_end,
        "it ends after the last whole message",
        ends_at=status.max_offset,
        torn_end=torn_end,
    )
    world.link(slave).heal()
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 6)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "and they go on together", counts=tally)

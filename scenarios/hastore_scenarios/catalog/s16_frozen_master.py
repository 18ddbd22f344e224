"""16: the master is frozen for longer than its peers wait, and runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import Operation


@scenario(
    number=16,
    title="A frozen master",
    proves=(
        "a slave notices that its master is frozen; a master that runs on acknowledges only what a"
        " slave has, and takes the slave back"
    ),
)
async def frozen_master(world: World) -> None:
    """SIGSTOP until the slave notices, first idle, then with a waiting put and a cut link."""
    config: dict[str, Any] = {
        "slave_timeout_ms": 2_000,
        "ha_send_heartbeat_interval_ms": 200,
        "ha_housekeeping_interval_ms": 4_000,
        "ha_connect_timeout_ms": 1_000,
    }
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    await world.pause(master)
    await world.wait_until(
        slave,
        "the slave leaves the silent master",
        lambda s: s.master_link is not None and s.master_link.state != "streaming",
    )
    await world.resume(master)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "both are back", status=put.label)

    world.say("now with a waiting put that the slave does not get")
    world.link(slave).cut()
    outcome: list[Operation] = []

    async def put_one() -> None:
        outcome.append(await world.put(master))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_one)
        await world.wait_until(master, "it waits", lambda s: s.waiting_for_slave == 1)
        await world.pause(master)
        await world.wait_until(
            slave,
            "the slave leaves it again",
            lambda s: s.master_link is not None and s.master_link.state != "streaming",
        )
        world.expect(not outcome, "a frozen master answers nothing")
        await world.resume(master)
    world.expect(
        outcome[0].status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        "its time was over long ago",
        status=outcome[0].label,
    )
    await world.wait_until(master, "the silent slave is disconnected", lambda s: not s.slaves)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "no earlier connection counts as a slave",
        status=put.label,
    )
    world.link(slave).heal()
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "the link is open again", status=put.label)

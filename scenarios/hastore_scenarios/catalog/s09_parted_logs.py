"""09: the former master comes back with messages that the new one never got."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=9,
    title="Parted logs",
    proves=(
        "a former master whose log went another way is refused and named, is not written to, and"
        " counts for nothing"
    ),
)
async def parted_logs(world: World) -> None:
    """Its end lies below the new master's, so offsets alone look right; the bytes do not.

    RocketMQ's slave would append the new master's bytes behind its own, and nobody would know.
    """
    former = await world.start_master("a")
    slave = await world.start_slave("b", master=former)
    await world.wait_healthy(slave)
    tally = await world.put_many(former, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both have fifty messages", counts=tally)

    world.link(slave).cut()
    await world.put_many(former, 20, wait=False)
    parted_at = (await world.status(slave)).max_offset
    former_end = (await world.status(former)).max_offset
    await world.kill(former)
    world.say("twenty more are on a only; b becomes the master and goes its own way")
    await world.promote(slave)
    await world.put_many(slave, 200)

    await world.follow(former, master=slave)
    status = await world.wait_until(
        former,
        "it says that the logs have parted",
        lambda status: status.master_link is not None and status.master_link.state == "diverged",
    )
    assert status.master_link is not None
    world.expect(
        status.max_offset == former_end,
        "its log is as it was: nothing appended, nothing cut",
        ends_at=status.max_offset,
        parted_at=parted_at,
    )
    world.expect(
        status.master_link.reason and status.master_link.hint,
        "its status says why, and what to do",
        reason=status.master_link.reason,
    )
    # It tells the master so on its link; until that has come, the link counts as a slave's.
    await world.wait_until(slave, "the master has let it go", lambda status: not status.slaves)
    put = await world.put(slave)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "to the master it is no slave",
        status=put.label,
    )

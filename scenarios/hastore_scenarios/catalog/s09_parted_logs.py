"""09: the former master comes back with messages that the new one does not have."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=9,
    title="Diverged logs",
    proves=(
        "a former master whose log has diverged is refused and named, its log is not changed, and"
        " it does not count as a slave"
    ),
)
async def parted_logs(world: World) -> None:
    """Its end lies below the new master's, so the offsets look right, but the bytes differ.

    RocketMQ's slave would append the new master's bytes after its own without an error.
    """
    former = await world.start_master("a")
    slave = await world.start_slave("b", master=former)
    await world.wait_healthy(slave)
    tally = await world.put_many(former, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both have fifty messages", counts=tally)

    world.link(slave).cut()
    await world.put_many(former, 20, wait=False)
    diverged_at = (await world.status(slave)).max_offset
    former_end = (await world.status(former)).max_offset
    await world.kill(former)
    world.say("only a has the last twenty; b becomes the master and takes other messages")
    await world.promote(slave)
    await world.put_many(slave, 200)

    await world.follow(former, master=slave)
    status = await world.wait_until(
        former,
        "it says that the logs have diverged",
        lambda status: status.master_link is not None and status.master_link.state == "diverged",
    )
    assert status.master_link is not None
    world.expect(
        status.max_offset == former_end,
        "its log has not changed",
        ends_at=status.max_offset,
        diverged_at=diverged_at,
    )
    world.expect(
        status.master_link.reason and status.master_link.hint,
        "its status says why, and what to do",
        reason=status.master_link.reason,
    )
    # It reports that to the master on its link, which counts as a slave's until then.
    await world.wait_until(slave, "the link is closed", lambda status: not status.slaves)
    put = await world.put(slave)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "it does not count as a slave",
        status=put.label,
    )

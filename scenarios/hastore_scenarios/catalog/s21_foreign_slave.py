"""21: a slave with another cluster's log, then with an empty disk."""

from __future__ import annotations

from hastore_scenarios import BrokerRole, PutMessageStatus, World, scenario


@scenario(
    number=21,
    title="A foreign slave and an empty one",
    proves=(
        "a log of other messages is refused, shorter or longer, and not changed; with an empty"
        " disk the same node copies everything"
    ),
)
async def foreign_slave(world: World) -> None:
    """The wrong disk was mounted; the shorter log's offsets look right."""
    master = await world.start_master("a")
    await world.put_many(master, 60)
    shorter = await world.start_master("b", role=BrokerRole.ASYNC_MASTER)
    longer = await world.start_master("c", role=BrokerRole.ASYNC_MASTER)
    await world.put_many(shorter, 20)
    await world.put_many(longer, 120)

    for foreign in (shorter, longer):
        end = (await world.status(foreign)).max_offset
        await world.follow(foreign, master=master)
        status = await world.wait_until(
            foreign,
            "it says that the logs have diverged",
            lambda s: s.master_link is not None and s.master_link.state == "diverged",
        )
        assert status.master_link is not None
        world.expect(
            status.max_offset == end and status.master_link.hint,
            "its log has not changed, and its status says what to do",
            ends_at=status.max_offset,
            reason=status.master_link.reason,
        )
    tally = await world.put_many(master, 10)
    world.expect(
        tally.all_are(PutMessageStatus.SLAVE_NOT_AVAILABLE),
        "neither counts as a slave",
        counts=tally,
    )

    for foreign in (shorter, longer):
        await world.stop(foreign)
        await world.disk(foreign).wipe()
        await world.restart(foreign)
        await world.wait_healthy(foreign)
    tally = await world.put_many(master, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "with empty disks they do", counts=tally)

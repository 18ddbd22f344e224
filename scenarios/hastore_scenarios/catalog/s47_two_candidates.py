"""47: two nodes stand, and have not the same."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=47,
    title="Two candidates",
    proves=(
        "of two nodes that stand exactly one becomes master, the one with the longer log, and the"
        " other cuts nothing: it follows"
    ),
)
async def two_candidates(world: World) -> None:
    """The one with the lower id lacks what was not acknowledged: it was cut off from the master."""
    a, b, c = await world.start_group(
        3,
        coordinator=1,
        min_in_sync_replicas=2,
        sync_state_timeout_ms=60_000,
        slave_timeout_ms=500,
    )
    first = await world.put_many(a, 20)
    world.expect(first.all_are(PutMessageStatus.PUT_OK), "with three", counts=first)
    await world.cut_off(a, b)
    tally = await world.put_many(a, 20)
    world.expect(not tally.counts.get("PUT_OK"), "b does not have them", counts=tally)
    end = (await world.status(c)).max_offset
    await world.kill(a)
    master = await world.wait_master(2)
    world.expect(master is c, "the longer log wins", master=master.name)
    view = await world.coordinator.view()
    epochs = [(record.epoch, record.master_id) for record in view.history]
    world.expect(
        epochs == [(1, a.node_id), (2, c.node_id)], "there was one election", epochs=epochs
    )
    start = (await world.status(c)).epoch_start_offset
    world.expect(start == end, "nothing of it is gone", start=start, end=end)
    await world.wait_healthy(b)
    status = await world.status(b)
    world.expect(not status.last_cut, "the other one has cut nothing", cut=status.last_cut)
    await world.restart(a)
    await world.wait_healthy(a)
    back = await world.put_many(c, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "with three again", counts=back)

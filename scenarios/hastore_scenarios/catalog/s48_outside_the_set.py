"""48: the only node that is left is not in the SyncStateSet."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, members_of, scenario

WAITS_S = 6.0  # two leases


@scenario(
    number=48,
    title="A slave outside the set",
    proves=(
        "a node that is not in the SyncStateSet never stands, although it is the only one that is"
        " up; the group goes on once a member is back"
    ),
)
async def outside_the_set(world: World) -> None:
    """It was down while others acknowledged; then those are killed."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    await world.kill(c)
    await world.wait_until(a, "c has left the set", lambda s: c.node_id not in members_of(s))
    tally = await world.put_many(a, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "two acknowledge", counts=tally)
    await world.kill(b)
    await world.kill(a)
    await world.restart(c)
    await world.coordinator.wait_until("the key is gone", lambda view: view.leader is None)
    status = await world.wait_until(c, "it waits for two leases", lambda s: s.uptime_s > WAITS_S)
    doing = "" if status.coordinator is None else status.coordinator.doing
    world.expect("not in the SyncStateSet" in doing, "it says why it does not stand", doing=doing)
    epochs = [record.epoch for record in (await world.coordinator.view()).history]
    world.expect(epochs == [1], "nobody was elected", epochs=epochs)

    await world.restart(b)
    master = await world.wait_master(2)
    world.expect(master is b, "the member is", master=master.name)
    await world.wait_healthy(c)
    back = await world.put_many(b, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "with two again", counts=back)
    await world.restart(a)
    await world.wait_healthy(a)

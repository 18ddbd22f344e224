"""50: a master is killed while elections are paused."""

from __future__ import annotations

from hastore_scenarios import (
    OperationRefusedError,
    PutMessageStatus,
    World,
    operations,
    scenario,
)


@scenario(
    number=50,
    title="Elections are paused",
    proves=(
        "while elections are paused the master goes on, no other node becomes master, not even when"
        " it is killed, and a switchover is refused; the group elects once they go on"
    ),
)
async def elections_paused(world: World) -> None:
    """A person pauses them, as before work on the network."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    await world.coordinator.change(operations.pause)
    tally = await world.put_many(a, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "the master goes on", counts=tally)
    try:
        await world.coordinator.change(operations.switchover, b.node_id)
    except OperationRefusedError as error:
        world.say(f"refused: {error}")
    else:
        world.expect(False, "a switchover is refused")
    await world.kill(a)
    await world.coordinator.wait_until("its key is gone", lambda view: view.leader is None)
    for node in (b, c):
        await world.wait_until(
            node,
            "it says why it does not stand",
            lambda s: (
                s.coordinator is not None
                and s.coordinator.doing == "there is no master, and elections are paused"
            ),
        )
    await world.coordinator.change(operations.resume)
    master = await world.wait_master(2)
    await world.wait_healthy(c if master is b else b)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "they go on", status=put.label)
    await world.restart(a)
    await world.wait_healthy(a)

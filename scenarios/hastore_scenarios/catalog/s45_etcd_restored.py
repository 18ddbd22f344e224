"""45: etcd goes back to an old backup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import (
    OperationRefusedError,
    PutMessageStatus,
    World,
    operations,
    scenario,
)

if TYPE_CHECKING:
    from hastore.cluster.group_records import GroupView


@scenario(
    number=45,
    title="etcd is restored to the past",
    proves=(
        "when etcd is restored to before a failover the nodes say so, nobody is elected and nothing"
        " is cut, until a person has looked"
    ),
)
async def etcd_restored(world: World) -> None:
    """The backup names the master of epoch 1; the messages since then are of epoch 2."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    first = await world.put_many(a, 20)
    world.expect(first.all_are(PutMessageStatus.PUT_OK), "in epoch 1", counts=first)
    backup = await world.coordinator.backup()
    await world.kill(a)
    master = await world.wait_master(2)
    await world.restart(a)
    for node in (a, b, c):
        if node is not master:
            await world.wait_healthy(node)
    second = await world.put_many(master, 20)
    world.expect(second.all_are(PutMessageStatus.PUT_OK), "in epoch 2", counts=second)
    end = (await world.status(master)).max_offset

    await world.coordinator.restore(backup)
    view = await world.coordinator.wait_until(
        "it is named", lambda view: view.config.alarm is not None
    )
    world.say(f"the alarm: {view.config.alarm}")
    await world.coordinator.wait_until("the old master's key is gone", _has_no_leader)
    for node in (a, b, c):
        status = await world.wait_until(
            node,
            "it waits for a person",
            lambda s: s.coordinator is not None and s.coordinator.doing.startswith("alarm: "),
        )
        world.expect(
            status.role == "SLAVE" and status.max_offset == end and not status.last_cut,
            "it is no master, and nothing was cut",
            end=status.max_offset,
        )

    world.say("a person looks: the master of epoch 2 has the newest log")
    try:
        await world.coordinator.change(operations.clear_alarm)
    except OperationRefusedError as error:
        world.say(f"refused: {error}")
    else:
        world.expect(False, "the alarm stays while its cause is there")
    await world.coordinator.change(operations.failover, master.node_id, at_ms=0, accept_loss=True)
    chosen = await world.wait_master(3)
    world.expect(chosen is master, "the one that was named", master=chosen.name)
    for node in (a, b, c):
        if node is not master:
            await world.wait_healthy(node)
    back = await world.put_many(master, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "they go on", counts=back)


def _has_no_leader(view: GroupView) -> bool:
    return view.leader is None

"""49: all three nodes are stopped and started, one after the other, as for a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, operations, scenario

if TYPE_CHECKING:
    from hastore.cluster.group_records import GroupView
    from hastore_scenarios import Node

MOMENT_S = 3.0  # as long as a master hands over at most; on a quiet machine it takes 0.4 s


@scenario(
    number=49,
    title="A rolling upgrade",
    proves=(
        "slaves are restarted without one put that is not PUT_OK; the master hands over first, and"
        " nothing is lost"
    ),
)
async def rolling_upgrade(world: World) -> None:
    """The slaves first, then a switchover, then the former master."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    moment_s = max(MOMENT_S, 2 * world.now_s)  # a busy machine was slow to start them, too
    async with world.group_load() as load:
        for node in (b, c):
            await _restart(world, node)
        told = {put.label for put in load.operations if put.completed_s is not None}
        world.expect(told == {"PUT_OK"}, "every put was acknowledged", answers=sorted(told))
        await world.coordinator.wait_until("all say that they follow", _all_follow)
        begun_s = world.now_s
        await world.coordinator.change(operations.switchover, b.node_id)
        master = await world.wait_master(2)
        world.expect(master is b, "the one that was named", master=master.name)
        await world.wait_healthy(a)
        await world.wait_until(
            b,
            "it acknowledges",
            lambda _: any(
                put.node == b.name and put.status is PutMessageStatus.PUT_OK
                for put in load.operations
            ),
        )
        taken_s = min(
            put.completed_s or 0.0
            for put in load.operations
            if put.node == b.name and put.status is PutMessageStatus.PUT_OK
        )
        world.expect(
            taken_s - begun_s < moment_s, "after a moment", seconds=round(taken_s - begun_s, 3)
        )
        before = len(load.operations)
        await _restart(world, a)
    last = {put.label for put in load.operations[before:]}
    world.expect(last == {"PUT_OK"}, "and every put after that", counts=sorted(last))


async def _restart(world: World, node: Node) -> None:
    await world.stop(node)
    await world.restart(node)
    await world.wait_healthy(node)


def _all_follow(view: GroupView) -> bool:
    slaves = [member for member in view.members.values() if member.role == "slave"]
    return len(slaves) == 2 and all(each.link is not None for each in slaves)

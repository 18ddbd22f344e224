"""39: a master that only etcd cannot reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus


@scenario(
    number=39,
    title="A master is cut off from etcd only",
    proves=(
        "a master that has lost its key, because etcd does not hear of it, goes on while all"
        " members promise not to stand, and takes the key again in its epoch"
    ),
)
async def cut_off_from_etcd(world: World) -> None:
    """Its slaves see that the key is gone, and do not stand: they have promised."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    async with world.load(a, every_ms=10) as load:

        def goes_on(_: NodeStatus) -> bool:
            return any(
                put.invoked_s > gone_s and put.status is PutMessageStatus.PUT_OK
                for put in load.operations
            )

        gone_s = world.now_s
        await world.wait_until(a, "it acknowledges", goes_on)
        await world.coordinator.cut_off(a)
        await world.coordinator.wait_until("its key is gone", lambda view: view.leader is None)
        gone_s = world.now_s
        await world.wait_until(a, "it acknowledges without the key", goes_on)
        status = await world.status(a)
        world.expect(
            status.coordinator is not None and status.coordinator.is_failsafe,
            "it leads by promises",
            coordinator=status.coordinator,
        )
        await world.coordinator.reconnect(a)
        view = await world.coordinator.wait_until(
            "it has the key again", lambda view: view.leader is not None
        )
        gone_s = world.now_s
        await world.wait_until(a, "it acknowledges with the key", goes_on)
    world.expect(
        view.leader is not None and view.leader.epoch == 1,
        "nobody else was master meanwhile",
        leader=view.leader,
    )
    world.expect(set(load.counts) == {"PUT_OK"}, "every put was acknowledged", counts=load.counts)
    for node in (b, c):
        await world.wait_healthy(node)

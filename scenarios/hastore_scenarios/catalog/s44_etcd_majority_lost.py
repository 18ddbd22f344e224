"""44: one of three etcd servers stops, then two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

TTL_MS = 3_000
LOST_S = 2 * TTL_MS / 1000


@scenario(
    number=44,
    title="etcd loses its majority",
    proves=(
        "puts go on without one of three etcd servers, and by promises without two; the epoch goes"
        " on once the majority is back"
    ),
)
async def etcd_majority_lost(world: World) -> None:
    """Each for two leases; the servers that are left know of the group, but may not answer."""
    a, b, c = await world.start_group(3, coordinator=3, min_in_sync_replicas=2, ttl_ms=TTL_MS)
    async with world.load(a, every_ms=10) as load:
        for servers in (1, 2):
            await world.coordinator.stop(servers)
            lost_s = world.now_s

            def goes_on(_: NodeStatus, lost_s: float = lost_s) -> bool:
                return any(
                    put.invoked_s > lost_s + LOST_S and put.status is PutMessageStatus.PUT_OK
                    for put in load.operations
                )

            status = await world.wait_until(a, "puts are PUT_OK after two leases", goes_on)
            own = status.coordinator
            world.expect(
                own is not None and own.is_failsafe is (servers > 1),
                "the majority decides whether it needs promises",
                coordinator=own,
            )
            await world.coordinator.start()
            await world.wait_until(
                a,
                "it leads by its lease",
                lambda s: s.coordinator is not None and not s.coordinator.is_failsafe,
            )
    world.expect(set(load.counts) == {"PUT_OK"}, "every put was acknowledged", counts=load.counts)
    epochs = [record.epoch for record in (await world.coordinator.view()).history]
    world.expect(epochs == [1], "in one epoch", epochs=epochs)
    for node in (b, c):
        await world.wait_healthy(node)

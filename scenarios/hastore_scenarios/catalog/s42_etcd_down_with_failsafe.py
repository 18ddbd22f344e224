"""42: etcd is down for much longer than a lease; the members promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

TTL_MS = 3_000
DOWN_S = 3 * TTL_MS / 1000


@scenario(
    number=42,
    title="etcd is down, and the members promise",
    proves=(
        "while etcd is down puts go on for as long as every member promises not to stand, and the"
        " epoch goes on when it is back; once a member is gone, too, the master steps down"
    ),
)
async def etcd_down_with_failsafe(world: World) -> None:
    """For three leases; then once more, with a member killed meanwhile."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2, ttl_ms=TTL_MS)
    async with world.load(a, every_ms=10) as load:
        await world.wait_until(a, "it acknowledges", lambda _: load.counts.get("PUT_OK", 0) > 20)
        await world.coordinator.stop()
        down_s = world.now_s

        def goes_on(_: NodeStatus) -> bool:
            return any(
                put.invoked_s > down_s + DOWN_S and put.status is PutMessageStatus.PUT_OK
                for put in load.operations
            )

        await world.wait_until(a, "it leads by promises", _leads_by_promises)
        await world.wait_until(a, "puts are PUT_OK after three leases", goes_on)
        await world.coordinator.start()
        await world.wait_until(a, "it leads by its lease again", _leads_by_its_lease)
    world.expect(set(load.counts) == {"PUT_OK"}, "every put was acknowledged", counts=load.counts)
    epochs = [record.epoch for record in (await world.coordinator.view()).history]
    world.expect(epochs == [1], "in one epoch", epochs=epochs)

    world.say("etcd is down again, and a member dies: nobody can say who is in the set")
    await world.coordinator.stop()
    await world.wait_until(a, "it leads by promises", _leads_by_promises)
    await world.kill(c)
    await world.wait_until(a, "it has stepped down", lambda status: status.role == "SLAVE")
    await world.coordinator.start()
    master = await world.wait_master(2)
    await world.restart(c)
    for node in (a, b, c):
        if node is not master:
            await world.wait_healthy(node)
    back = await world.put_many(master, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "as before", counts=back)


def _leads_by_promises(status: NodeStatus) -> bool:
    own = status.coordinator
    return status.role == "SYNC_MASTER" and own is not None and own.is_failsafe


def _leads_by_its_lease(status: NodeStatus) -> bool:
    own = status.coordinator
    return own is not None and own.is_reachable and not own.is_failsafe

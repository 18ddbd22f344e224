"""41: a master that only its slaves cannot reach."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, members_of, scenario


@scenario(
    number=41,
    title="A master is cut off from its slaves only",
    proves=(
        "with min_in_sync_replicas = 1 a master that etcd hears of, and no slave, acknowledges"
        " alone once etcd has accepted a set of itself; from then on no other node may become"
        " master, not even when it is killed"
    ),
)
async def cut_off_from_slaves(world: World) -> None:
    """With min_in_sync_replicas = 1: puts go on, and a failover has to wait for this node."""
    a, b, c = await world.start_group(
        3, coordinator=1, min_in_sync_replicas=1, slave_timeout_ms=500
    )
    first = await world.put_many(a, 50)
    world.expect(first.all_are(PutMessageStatus.PUT_OK), "with three", counts=first)
    await world.cut_off(a, b, c)
    put = await world.put(a)
    world.expect(
        put.status is not PutMessageStatus.PUT_OK,
        "while they are members no put is acknowledged without them",
        status=put.label,
    )
    await world.wait_until(a, "its set is itself", lambda s: members_of(s) == (a.node_id,))
    alone = await world.put_many(a, 50)
    world.expect(alone.all_are(PutMessageStatus.PUT_OK), "it goes on alone", counts=alone)

    await world.kill(a)
    await world.coordinator.wait_until("its key is gone", lambda view: view.leader is None)
    for node in (b, c):
        await world.wait_until(
            node,
            "it says why it does not stand",
            lambda s: (
                s.coordinator is not None and "not in the SyncStateSet" in s.coordinator.doing
            ),
        )
    await world.reconnect(a)
    await world.restart(a)
    master = await world.wait_master(2)
    world.expect(master is a, "only the former master may go on", master=master.name)
    await world.wait_healthy(b)
    await world.wait_healthy(c)
    back = await world.put_many(a, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "with three again", counts=back)

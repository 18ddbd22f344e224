"""40: a master that only etcd cannot reach, and failsafe is off."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=40,
    title="A master is cut off from etcd, and failsafe is off",
    proves=(
        "a master that etcd does not hear of acknowledges nothing once its lease is over, although"
        " its slaves are connected: another one begins, and it follows that one once it hears of it"
    ),
)
async def cut_off_without_failsafe(world: World) -> None:
    """A producer keeps asking it; the next master takes puts meanwhile."""
    a, b, c = await world.start_group(3, coordinator=1, min_in_sync_replicas=2, failsafe=False)
    async with world.load(a, every_ms=5) as load:
        await world.wait_until(a, "it acknowledges", lambda _: load.counts.get("PUT_OK", 0) > 50)
        await world.coordinator.cut_off(a)
        await world.coordinator.wait_until(
            "its key is gone", lambda view: view.leader is None or view.leader.epoch > 1
        )
        gone_s = world.now_s
        successor = await world.wait_master(2)
        world.expect(successor is not a, "another node is master", master=successor.name)
        await world.wait_healthy(c if successor is b else b)
        put = await world.put(successor)
        world.expect(put.status is PutMessageStatus.PUT_OK, "which acknowledges", status=put.label)
        status = await world.wait_until(a, "it has stepped down", lambda s: s.role == "SLAVE")
        doing = "" if status.coordinator is None else status.coordinator.doing
        world.expect("does not answer" in doing, "its status says why", doing=doing)
    late = [put for put in load.operations if put.invoked_s > gone_s]
    world.expect(
        all(put.status is not PutMessageStatus.PUT_OK for put in late),
        "it has acknowledged nothing since its lease has ended",
        puts=len(late),
    )
    await world.coordinator.reconnect(a)
    await world.wait_healthy(a)
    back = await world.put_many(successor, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "with three again", counts=back)

"""43: etcd is down for longer than a lease, and failsafe is off."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario

TTL_MS = 3_000


@scenario(
    number=43,
    title="etcd is down, and failsafe is off",
    proves=(
        "without failsafe puts stop before the lease is over, although all members acknowledge;"
        " they go on by themselves once etcd is back"
    ),
)
async def etcd_down_without_failsafe(world: World) -> None:
    """A producer keeps asking the master until it has stepped down."""
    a, b, c = await world.start_group(
        3, coordinator=1, min_in_sync_replicas=2, ttl_ms=TTL_MS, failsafe=False
    )
    async with world.load(a, every_ms=5) as load:
        await world.wait_until(a, "it acknowledges", lambda _: load.counts.get("PUT_OK", 0) > 50)
        await world.coordinator.stop()
        over_s = world.now_s + TTL_MS / 1000  # no renewal can have been sent later
        await world.wait_until(
            a, "it has stepped down", lambda status: status.role == "SLAVE", within_s=20.0
        )
    late = [
        put
        for put in load.operations
        if put.invoked_s > over_s and put.status is PutMessageStatus.PUT_OK
    ]
    world.expect(not late, "nothing that was sent after its lease is acknowledged", puts=len(late))
    await world.coordinator.start()
    master = await world.wait_master(2)
    for node in (a, b, c):
        if node is not master:
            await world.wait_healthy(node)
    back = await world.put_many(master, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "they go on", counts=back)

"""32: a group that refuses puts rather than keep a message on one node."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=32,
    title="min_in_sync_replicas, strict",
    proves=(
        "with fewer members than min_in_sync_replicas a put is refused before it is written, and"
        " no set shrinks below that number"
    ),
)
async def strict_mode(world: World) -> None:
    """Two of three must have each message: min_in_sync_replicas = 2."""
    a, b, c = await world.start_group(3, min_in_sync_replicas=2)
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "with three members", counts=tally)
    await world.kill(c)
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "with two", status=put.label)

    await world.kill(a)
    await world.promote(b)
    before = await world.status(b)
    put = await world.put(b)
    world.expect(
        put.status is PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
        "the new master is alone in its set, and refuses",
        status=put.label,
        reason=put.error,
    )
    after = await world.status(b)
    world.expect(
        after.max_offset == before.max_offset, "nothing was written", ends_at=after.max_offset
    )
    assert after.sync_state is not None
    world.expect(after.sync_state.mode == "strict", "its status says so", mode="strict")

    await world.restart(a)
    await world.wait_healthy(a)
    put = await world.put(b)
    world.expect(put.status is PutMessageStatus.PUT_OK, "with two again", status=put.label)
    await world.kill(a)
    put = await world.put(b)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "a dead member stays in a set that may not shrink: stored, and not acknowledged",
        status=put.label,
    )
    await world.restart(c)
    await world.wait_healthy(c)
    put = await world.put(b)
    world.expect(put.status is PutMessageStatus.PUT_OK, "with b and c", status=put.label)

"""31: members are frozen, and come back."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=31,
    title="A frozen member",
    proves=(
        "a member that does not acknowledge leaves the SyncStateSet, unless a majority of the group"
        " would be lost: then puts are not acknowledged; once it goes on, it is a member again"
    ),
)
async def frozen_member(world: World) -> None:
    """SIGSTOP: the links stay open, so only the missing acks tell."""
    a, b, c = await world.start_group(3, sync_state_timeout_ms=700, slave_timeout_ms=3_000)
    await world.pause(c)
    put = await world.put(a)
    world.expect(
        put.status is PutMessageStatus.PUT_OK,
        "it is acknowledged once the frozen one has left the set",
        status=put.label,
    )
    status = await world.wait_until(a, "the set is a and b", lambda s: _members(s) == (1, 2))
    assert status.sync_state is not None
    (row,) = [row for row in status.sync_state.nodes if row.node_id == 3]
    world.expect(row.why_not, "its status says why", why=row.why_not)

    await world.pause(b)
    put = await world.put(a)
    world.expect(
        put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        "without b no majority would remain: the put is not acknowledged",
        status=put.label,
    )
    members = _members(await world.status(a))
    world.expect(members == (1, 2), "and b stays in the set", members=members)

    await world.resume(b)
    await world.wait_healthy(b)
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "b goes on", status=put.label)
    await world.resume(c)
    await world.wait_healthy(c)
    members = _members(await world.status(a))
    world.expect(members == (1, 2, 3), "c is a member again", members=members)
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "all three", counts=tally)


def _members(status: object) -> tuple[int, ...]:
    """Return the SyncStateSet in a master's status."""
    group = getattr(status, "sync_state", None)
    return () if group is None else tuple(group.members)

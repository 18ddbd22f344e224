"""31: members are frozen, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hastore_scenarios import PutMessageStatus, World, members_of, scenario

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import Operation


@scenario(
    number=31,
    title="A frozen member",
    proves=(
        "a member that does not acknowledge leaves the SyncStateSet, unless a majority of the group"
        " would be lost: then puts are not acknowledged, not even by a master that steps down; once"
        " it goes on, it is a member again"
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
    status = await world.wait_until(a, "the set is a and b", lambda s: members_of(s) == (1, 2))
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
    members = members_of(await world.status(a))
    world.expect(members == (1, 2), "and b stays in the set", members=members)

    await world.resume(b)
    await world.wait_healthy(b)
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "b goes on", status=put.label)
    await world.resume(c)
    await world.wait_healthy(c)
    members = members_of(await world.status(a))
    world.expect(members == (1, 2, 3), "c is a member again", members=members)
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "all three", counts=tally)

    world.say("both are frozen, and the master steps down while a put waits for them")
    await world.pause(b)
    await world.pause(c)
    outcome: list[Operation] = []

    async def put_one() -> None:
        outcome.append(await world.put(a))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_one)
        await world.wait_until(a, "it waits", lambda s: s.waiting_for_slave == 1)
        await world.demote(a)
    world.expect(
        outcome[0].status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        "the put is answered, and not acknowledged",
        status=outcome[0].label,
    )
    await world.resume(b)
    await world.resume(c)
    await world.promote(a)
    await world.wait_healthy(b)
    await world.wait_healthy(c)
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "as before", status=put.label)

"""37: a master is frozen until its lease is over, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore_scenarios import Tally

WAITING = 8
ALONE = 20


@scenario(
    number=37,
    title="A master is frozen for longer than its lease",
    proves=(
        "a master that is frozen beyond its lease acknowledges nothing when it goes on, not even"
        " what all members have: it becomes a slave by itself, cuts what it alone had, and keeps it"
    ),
)
async def frozen_beyond_its_lease(world: World) -> None:
    """Once with puts whose acks come while it is frozen, once with messages that it alone has."""
    a, b, c = await world.start_group(
        3, coordinator=1, min_in_sync_replicas=2, slave_timeout_ms=60_000
    )
    first = await world.put_many(a, 50)
    world.expect(first.all_are(PutMessageStatus.PUT_OK), "all three have fifty", counts=first)
    await world.pause(b)
    await world.pause(c)
    waiting: list[Tally] = []

    async def put_some() -> None:
        waiting.append(await world.put_many(a, WAITING))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_some)
        status = await world.wait_until(
            a, "puts wait for the others", lambda s: s.waiting_for_slave == WAITING
        )
        await world.pause(a)
        await world.resume(b)
        await world.resume(c)
        master = await world.wait_master(2)
        start = (await world.status(master)).epoch_start_offset
        world.expect(start == status.max_offset, "the next master has all of them", start=start)
        await world.resume(a)
    world.expect(
        not waiting[0].counts.get("PUT_OK"),
        "it has acknowledged none of them since it goes on",
        counts=waiting[0],
    )

    others = [node for node in (a, b, c) if node is not master]
    for node in others:
        await world.wait_healthy(node)
    new = await world.put_many(master, 50)
    world.expect(new.all_are(PutMessageStatus.PUT_OK), "all three go on", counts=new)
    diverges_at = (await world.status(master)).max_offset
    for node in others:
        await world.kill(node)
    await world.wait_until(master, "it is alone", lambda s: not s.slaves)
    alone = await world.put_many(master, ALONE)
    world.expect(not alone.counts.get("PUT_OK"), "nobody acknowledges these", counts=alone)
    await world.pause(master)
    for node in others:
        await world.restart(node)
    successor = await world.wait_master(3)
    await world.resume(master)
    await world.wait_healthy(master)
    cut = (await world.status(master)).last_cut or {}
    world.expect(
        (cut.get("offset"), cut.get("messages")) == (diverges_at, {"Scenario": ALONE}),
        "what it alone had is cut",
        cut=cut,
    )
    kept = await world.cut_bytes(master)
    world.expect(len(kept) == cut["end"] - diverges_at, "trimmed/ has the bytes", size=len(kept))
    for node in others:
        if node is not successor:
            await world.wait_healthy(node)
    back = await world.put_many(successor, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "with three again", counts=back)

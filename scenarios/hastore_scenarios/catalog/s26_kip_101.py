"""26: the two histories for which Kafka got leader epochs (KIP-101)."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, members_of, scenario

EACH = 10


@scenario(
    number=26,
    title="KIP-101's histories",
    proves=(
        "a slave that restarts keeps what it has acknowledged, though it never heard that it was"
        " confirmed; and logs of equal length that differ at their ends become equal"
    ),
)
async def kip_101(world: World) -> None:
    """Kafka cut by the high watermark: it lost a message, or two logs differed unnoticed.

    KIP-101 (Alter Replication Protocol to use Leader Epoch), scenarios 1 and 2.
    """
    a, b, c = await world.start_group(3)
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "all three have twenty", counts=tally)

    world.say("first history: a slave restarts, and its master is gone")
    last = await world.put(a)
    await world.kill(a)
    await world.kill(b)
    await world.restart(b)
    end = (await world.status(b)).max_offset
    world.expect(
        last.status is PutMessageStatus.PUT_OK and end > (last.physic_offset or 0),
        "it still has the last message",
        ends_at=end,
    )
    await world.promote(b)
    put = await world.put(b)
    world.expect(put.status is PutMessageStatus.PUT_OK, "b and c go on", status=put.label)

    world.say("second history: all fail, and the one that lacks the end comes back first")
    await world.restart(a)
    await world.wait_healthy(a)
    await world.kill(a)
    await world.wait_until(b, "a has left the set", lambda s: members_of(s) == (2, 3))
    await world.kill(c)
    alone = await world.put_many(b, EACH)
    world.expect(not alone.counts.get("PUT_OK"), "only b has ten more", counts=alone)
    former_end = (await world.status(b)).max_offset
    await world.kill(b)
    await world.restart(a)
    await world.restart(c)
    await world.promote(c)
    others = await world.put_many(c, EACH)
    world.expect(others.all_are(PutMessageStatus.PUT_OK), "c has ten others", counts=others)
    end = (await world.status(c)).max_offset
    world.expect(end == former_end, "both logs end at one offset", ends_at=end)

    await world.restart(b)
    await world.wait_healthy(b)
    cut = (await world.status(b)).last_cut or {}
    world.expect(cut.get("messages") == {"Scenario": EACH}, "b has cut its ten", cut=cut)
    logs = [await world.log_bytes(node, 0, end) for node in (a, b, c)]
    world.expect(len(set(logs)) == 1, "the logs are equal", size=end)

"""28: a former master comes back with a tail that was never acknowledged."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, members_of, scenario

ALONE = {"Scenario": 12, "Other": 5}


@scenario(
    number=28,
    title="A former master returns",
    proves=(
        "a former master cuts its diverged tail at the consistent point, keeps it, byte by byte and"
        " counted by topic, and goes on as a slave with its master's bytes"
    ),
)
async def former_master_returns(world: World) -> None:
    """Two slaves are killed; what the master stores alone then is never PUT_OK.

    A classic former master is refused instead (parted-logs): epochs say where the logs diverge.
    """
    a, b, c = await world.start_group(3)
    tally = await world.put_many(a, 50)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "all three have fifty", counts=tally)
    diverges_at = (await world.status(a)).max_offset

    await world.kill(b)
    await world.wait_until(a, "b has left the set", lambda s: members_of(s) == (1, 3))
    await world.kill(c)
    for topic, count in ALONE.items():
        alone = await world.put_many(a, count, topic=topic)
        world.expect(
            not alone.counts.get("PUT_OK"),
            "what the master has alone is not acknowledged",
            counts=alone,
        )
    end = (await world.status(a)).max_offset
    tail = await world.log_bytes(a, diverges_at, end)
    await world.kill(a)

    await world.restart(b)
    await world.restart(c)
    await world.promote(c)
    new = await world.put_many(c, 100)
    world.expect(new.all_are(PutMessageStatus.PUT_OK), "two of three go on", counts=new)

    await world.restart(a)
    await world.wait_healthy(a)
    status = await world.status(a)
    cut = status.last_cut or {}
    world.expect(
        (cut.get("offset"), cut.get("end")) == (diverges_at, end),
        "it was cut at the consistent point",
        cut=cut,
    )
    world.expect(cut.get("messages") == ALONE, "and its messages counted by topic", cut=cut)
    world.expect(
        await world.cut_bytes(a) == tail, "trimmed/ has the bytes of the tail", size=len(tail)
    )
    own_end = (await world.status(c)).max_offset
    logs = [await world.log_bytes(node, 0, own_end) for node in (a, b, c)]
    world.expect(len(set(logs)) == 1, "all three logs are equal", size=own_end)
    back = await world.put_many(c, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "with three again", counts=back)

"""30: a node is killed at every step of a cut of its log."""

from __future__ import annotations

from hastore_scenarios import CutStep, PutMessageStatus, World, scenario

TAIL = 15


@scenario(
    number=30,
    title="Killed at every step of a cut",
    proves=(
        "a former master that is killed before each step of a cut, one after the other, ends with"
        " its master's bytes, and has kept what it cut"
    ),
)
async def killed_cut(world: World) -> None:
    """Nine starts, each of which dies one step further; the tenth follows.

    Consumers may read what is not confirmed, so that queues and index are cut, too.
    """
    a, b = await world.start_group(2, faulty_disk=True, read_uncommitted=True)
    tally = await world.put_many(a, 30)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both have thirty", counts=tally)
    cut_at = (await world.status(a)).max_offset
    await world.kill(b)
    alone = await world.put_many(a, TAIL)
    world.expect(not alone.counts.get("PUT_OK"), "a has more, alone", counts=alone)
    status = await world.wait_until(a, "it is indexed", lambda s: s.dispatch_behind_bytes == 0)
    end = status.max_offset
    tail = await world.log_bytes(a, cut_at, end)
    await world.kill(a)
    await world.restart(b)
    await world.promote(b)
    others = await world.put_many(b, 40)
    world.expect(others.all_are(PutMessageStatus.PUT_OK), "b has others", counts=others)

    for step in CutStep:
        await world.die_in_cut(a, step)
    await world.restart(a)
    await world.wait_healthy(a)
    cut = (await world.status(a)).last_cut or {}
    world.expect(
        (cut.get("offset"), cut.get("end"), cut.get("messages"))
        == (cut_at, end, {"Scenario": TAIL}),
        "it has made its cut",
        cut=cut,
    )
    world.expect(await world.cut_bytes(a) == tail, "and kept the bytes", size=len(tail))
    put = await world.put(b)
    world.expect(put.status is PutMessageStatus.PUT_OK, "both go on", status=put.label)
    end = (await world.status(b)).max_offset
    logs = [await world.log_bytes(node, 0, end) for node in (a, b)]
    world.expect(len(set(logs)) == 1, "the logs are equal", size=end)

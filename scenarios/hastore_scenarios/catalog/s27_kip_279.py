"""27: fast failovers, after which each side has epochs that the other never heard of (KIP-279)."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, members_of, scenario

EACH = 5


@scenario(
    number=27,
    title="KIP-279's history",
    proves=(
        "where both logs have epochs that the other lacks, with equal starts, the consistent point"
        " is found below all of them, and nothing acknowledged is lost"
    ),
)
async def kip_279(world: World) -> None:
    """Kafka's follower asked for its newest epoch only; its leader did not know that one.

    KIP-279 (Fix log divergence between leader and follower after fast leader fail over).  Here two
    nodes are masters of two epochs each, in turns, and nothing of those is acknowledged.
    """
    a, b, c = await world.start_group(3)
    tally = await world.put_many(a, 30)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "all three have thirty", counts=tally)
    common_end = (await world.status(a)).max_offset
    await world.kill(b)
    await world.wait_until(a, "b has left the set", lambda s: members_of(s) == (1, 3))
    await world.kill(c)

    for _ in range(2):
        await world.promote(a, members=[a, c])  # which waits for c
        alone = await world.put_many(a, EACH)
        world.expect(not alone.counts.get("PUT_OK"), "a has them alone", counts=alone)
    await world.kill(a)
    await world.restart(c)
    for _ in range(2):
        await world.promote(c, members=[a, c])
        alone = await world.put_many(c, EACH)
        world.expect(not alone.counts.get("PUT_OK"), "c has them alone", counts=alone)
    status = await world.status(c)
    world.say(f"c ends in epoch {status.epoch}, from {status.epoch_start_offset} on")
    await world.kill(c)

    await world.restart(a)
    await world.promote(a, members=[a, c])
    await world.restart(c)
    await world.restart(b)
    await world.wait_healthy(c)
    await world.wait_healthy(b)
    status = await world.status(c)
    cut = status.last_cut or {}
    world.expect(
        cut.get("offset") == common_end and cut.get("messages") == {"Scenario": 2 * EACH},
        "c has cut both of its epochs at the end of what was common",
        cut=cut,
        common_end=common_end,
    )
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "all three go on", status=put.label)
    end = (await world.status(a)).max_offset
    logs = [await world.log_bytes(node, 0, end) for node in (a, b, c)]
    world.expect(len(set(logs)) == 1, "the logs are equal", size=end)

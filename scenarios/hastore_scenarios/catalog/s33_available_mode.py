"""33: a group that goes on with one node, which then has messages alone."""

from __future__ import annotations

from hastore_scenarios import NotInSetError, PutMessageStatus, World, scenario


@scenario(
    number=33,
    title="min_in_sync_replicas, available",
    proves=(
        "with min_in_sync_replicas = 1 a master that is alone in its set acknowledges; until others"
        " are in the set, no other node may become master"
    ),
)
async def available_mode(world: World) -> None:
    """Two of three are killed, the last is promoted and acknowledges what it has alone."""
    a, b, c = await world.start_group(3)
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "with three members", counts=tally)
    await world.kill(c)
    await world.put(a)
    await world.kill(a)
    await world.promote(b)
    alone = await world.put_many(b, 10)
    world.expect(alone.all_are(PutMessageStatus.PUT_OK), "with one member", counts=alone)
    status = await world.status(b)
    assert status.sync_state is not None
    world.expect(
        status.sync_state.members == (2,) and status.sync_state.may_lose_because,
        "its status says what that risks",
        because=status.sync_state.may_lose_because,
    )

    await world.kill(b)
    await world.restart(a)
    refused = ""
    try:
        await world.promote(a)
    except NotInSetError as error:
        refused = str(error)
    world.expect("would be lost" in refused, "another node would lose them", error=refused)

    await world.restart(b)
    await world.wait_healthy(a)
    await world.promote(a)
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "as a member it may", status=put.label)

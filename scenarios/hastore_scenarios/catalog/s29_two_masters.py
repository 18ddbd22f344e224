"""29: a master that was replaced runs on, and does not know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

LATE = 20


@scenario(
    number=29,
    title="Two masters at once",
    proves=(
        "a master that was replaced while it was frozen takes itself for the master, and"
        " acknowledges nothing more; told of the new one, it follows it"
    ),
)
async def two_masters(world: World) -> None:
    """A producer keeps asking it, before, during and after the promotion of another node."""
    a, b, c = await world.start_group(3)
    async with world.load(a, in_flight=4) as load:

        def flows(_: NodeStatus) -> bool:
            return load.counts.get("PUT_OK", 0) > 50

        await world.wait_until(a, "puts are PUT_OK", flows)
        await world.pause(a)
        await world.promote(b)
        replaced_s = world.now_s
        early = await world.put_many(b, 20)
        world.expect(early.all_are(PutMessageStatus.PUT_OK), "b acknowledges", counts=early)
        await world.resume(a)

        def answers(_: NodeStatus) -> bool:
            late = [put for put in load.operations if put.invoked_s > replaced_s]
            return sum(put.status is not None for put in late) >= LATE

        status = await world.wait_until(a, "it answers again", answers)
        world.expect(
            (status.role, status.epoch) == ("SYNC_MASTER", 1),
            "it takes itself for the master of its epoch",
            role=status.role,
            epoch=status.epoch,
        )
        at_once = await world.put_many(b, 20)
        world.expect(at_once.all_are(PutMessageStatus.PUT_OK), "as b does", counts=at_once)
    late = [put for put in load.operations if put.invoked_s > replaced_s]
    world.expect(
        late and all(put.status is not PutMessageStatus.PUT_OK for put in late),
        "a has acknowledged nothing that was sent after the promotion",
        puts=len(late),
    )

    await world.follow(a, master=b)
    await world.wait_healthy(a)
    await world.wait_healthy(c)
    put = await world.put(b)
    world.expect(put.status is PutMessageStatus.PUT_OK, "a is one of three", status=put.label)
    cut = (await world.status(a)).last_cut or {}
    world.expect(cut.get("messages"), "what it had alone is cut, and kept", cut=cut)

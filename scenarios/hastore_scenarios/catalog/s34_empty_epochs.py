"""34: masters that are replaced before anybody puts a message."""

from __future__ import annotations

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=34,
    title="Three epochs without a message",
    proves=(
        "epochs without a message leave nothing behind: a node that missed them goes on where it"
        " was, and the last master of one cuts nothing"
    ),
)
async def empty_epochs(world: World) -> None:
    """They all begin at one offset, where RocketMQ refuses the later ones silently."""
    a, b, c = await world.start_group(3)
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "in epoch 1", counts=tally)
    end = (await world.status(a)).max_offset
    await world.kill(c)
    for master in (b, a, b):
        await world.promote(master)
        status = await world.status(master)
        world.expect(
            status.epoch_start_offset == end,
            "the epoch begins where the log ends",
            epoch=status.epoch,
        )
    await world.kill(b)
    await world.promote(a)
    put = await world.put(a)
    world.expect(put.status is PutMessageStatus.PUT_OK, "in epoch 5", status=put.label)

    for node in (b, c):
        await world.restart(node)
        await world.wait_healthy(node)
        status = await world.status(node)
        world.expect(
            (status.epoch, status.epoch_start_offset, status.last_cut) == (5, end, None),
            "it has the epoch, and has cut nothing",
            node=node.name,
            epoch=status.epoch,
            cut=status.last_cut,
        )
    tally = await world.put_many(a, 20)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "with three", counts=tally)

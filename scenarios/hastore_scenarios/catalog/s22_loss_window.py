"""22: what an asynchronous master loses with its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import BrokerRole, PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_scenarios.judge.history import Operation

LATE = 40


@scenario(
    number=22,
    title="An asynchronous master's loss window",
    proves=(
        "an ASYNC_MASTER's PUT_OK is on the master only: after a failover exactly the messages"
        " are lost that the slave did not have, and none before them"
    ),
)
async def loss_window(world: World) -> None:
    """The link stops, forty more are PUT_OK, the master is killed and its slave promoted."""
    master = await world.start_master("a", role=BrokerRole.ASYNC_MASTER)
    slave = await world.start_slave("b", master=master)
    early = await world.put_many(master, 100)
    await world.wait_healthy(slave)
    world.link(slave).cut()
    late = await world.put_many(master, LATE)
    world.expect(
        early.all_are(PutMessageStatus.PUT_OK) and late.all_are(PutMessageStatus.PUT_OK),
        "an asynchronous master waits for nobody",
        counts=late,
    )
    await world.kill(master)
    await world.promote(slave)
    end = (await world.status(slave)).max_offset
    world.expect(
        _lost(early.operations, end) == 0, "nothing is lost of what the slave had", ends_at=end
    )
    lost = _lost(late.operations, end)
    world.expect(lost == LATE, "the window, in messages", lost=lost, of=len(late.operations))

    await world.follow(master, master=slave)
    await world.wait_until(
        master,
        "the former master's extra messages keep it out",
        lambda s: s.master_link is not None and s.master_link.state == "diverged",
    )


def _lost(operations: Sequence[Operation], end: int) -> int:
    """Count the messages that lie behind the end of the log that is left."""
    return sum((operation.physic_offset or 0) >= end for operation in operations)

"""22: what a failover from an asynchronous master loses."""

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
        "an ASYNC_MASTER's PUT_OK means that the master has the message: a failover loses exactly"
        " those that the slave did not have"
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
        "an asynchronous master waits for no slave",
        counts=late,
    )
    await world.kill(master)
    await world.promote(slave)
    end = (await world.status(slave)).max_offset
    world.expect(
        _lost(early.operations, end) == 0, "nothing that the slave had is lost", ends_at=end
    )
    lost = _lost(late.operations, end)
    world.expect(lost == LATE, "the late messages are lost", lost=lost, of=len(late.operations))

    await world.follow(master, master=slave)
    await world.wait_until(
        master,
        "the former master is refused for its extra messages",
        lambda s: s.master_link is not None and s.master_link.state == "diverged",
    )


def _lost(operations: Sequence[Operation], end: int) -> int:
    """Return how many messages lie beyond the end of the remaining log."""
    return sum((operation.physic_offset or 0) >= end for operation in operations)

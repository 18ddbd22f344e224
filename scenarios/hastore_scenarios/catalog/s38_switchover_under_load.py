"""38: a person wishes another master, while puts come without pause."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, operations, scenario

if TYPE_CHECKING:
    from hastore.cluster.group_records import GroupView
    from hastore_scenarios import Node, Tally
    from hastore_scenarios.story.world import Condition

PAUSE_MAX_S = 3.0  # as long as a master hands over at most; on a quiet machine it takes 0.4 s
PUTS = 100


@scenario(
    number=38,
    title="A switchover under load",
    proves=(
        "a switchover loses nothing, and refuses puts for a moment only; the former master is a"
        " slave at once"
    ),
)
async def switchover_under_load(world: World) -> None:
    """To the second node, and back to the first one."""
    a, b, _ = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    pause_max_s = max(PAUSE_MAX_S, 2 * world.now_s)  # a busy machine was slow to start them, too
    async with world.group_load() as load:
        for epoch, (former, successor) in enumerate(((a, b), (b, a)), 2):
            await world.wait_until(former, "it acknowledges", _answers(load, former))
            await world.coordinator.wait_until("all nodes say that they follow it", _all_follow)
            await world.coordinator.change(operations.switchover, successor.node_id)
            master = await world.wait_master(epoch)
            world.expect(master is successor, "it is the one that was named", master=master.name)
            await world.wait_healthy(former)
    answered = sorted(
        put.completed_s or 0.0 for put in load.operations if put.status is PutMessageStatus.PUT_OK
    )
    longest_s = max(later - earlier for earlier, later in itertools.pairwise(answered))
    world.expect(longest_s < pause_max_s, "puts paused for a moment", seconds=round(longest_s, 3))
    whys = [record.why for record in (await world.coordinator.view()).history]
    world.expect(
        whys == ["election", "switchover", "switchover"], "the coordinator knows why", history=whys
    )


def _answers(load: Tally, master: Node) -> Condition:
    """Return whether a node has acknowledged more than a hundred puts."""
    return lambda _: (
        sum(
            put.node == master.name and put.status is PutMessageStatus.PUT_OK
            for put in load.operations
        )
        > PUTS
    )


def _all_follow(view: GroupView) -> bool:
    """Return whether a switchover would be refused to none of them."""
    leader = view.leader
    slaves = [member for member in view.members.values() if member.role == "slave"]
    return (
        leader is not None
        and len(slaves) == len(view.members) - 1
        and all(each.link is not None and each.last_epoch == leader.epoch for each in slaves)
    )

"""36: a master is killed, and nobody does anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore_scenarios import Node, Tally
    from hastore_scenarios.story.world import Condition


@scenario(
    number=36,
    title="A master is killed, its group elects another",
    proves=(
        "a group with a coordinator replaces a killed master by itself, loses nothing that it"
        " acknowledged, and takes it back as a slave"
    ),
)
async def master_killed(world: World) -> None:
    """Twice, under load that follows the master: the second one is killed, too."""
    await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    async with world.group_load() as load:
        for epoch in (1, 2):
            master = await world.wait_master(epoch)
            await world.wait_until(master, "it acknowledges", _answers(load, master))
            await world.kill(master)
            successor = await world.wait_master(epoch + 1)
            world.expect(successor is not master, "another node is master", master=successor.name)
            await world.wait_until(successor, "it acknowledges", _answers(load, successor))
            await world.restart(master)
            await world.wait_healthy(master)
            status = await world.status(master)
            world.expect(
                status.role == "SLAVE" and status.seen_epoch == epoch + 1,
                "the former master is a slave again, by itself",
                role=status.role,
                epoch=status.seen_epoch,
            )
    view = await world.coordinator.view()
    world.expect(
        [record.why for record in view.history] == ["election"] * 3,
        "the coordinator knows of three elections",
        history=[record.why for record in view.history],
    )


def _answers(load: Tally, master: Node) -> Condition:
    """Return whether a node has acknowledged more than fifty puts."""
    return lambda _: (
        sum(
            put.node == master.name and put.status is PutMessageStatus.PUT_OK
            for put in load.operations
        )
        > 50
    )

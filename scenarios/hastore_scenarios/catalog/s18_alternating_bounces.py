"""18: master and slave go down in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

BOUNCES = 5


@scenario(
    number=18,
    title="Alternating bounces",
    proves="no PUT_OK message is lost when master and slave are killed and stopped in turns",
)
async def alternating_bounces(world: World) -> None:
    """Five times under load, the master first; each comes back before the other goes."""
    master = await world.start_master("a", mapped_file_size=256 * 1024)
    slave = await world.start_slave("b", master=master, mapped_file_size=256 * 1024)
    await world.wait_healthy(slave)

    async with world.load(master, in_flight=8) as load:
        for bounce in range(BOUNCES):
            node = (master, slave)[bounce % 2]
            before = load.counts.get("PUT_OK", 0)
            end_bounce = world.stop if bounce in {1, 2} else world.kill
            await end_bounce(node)
            await world.restart(node)

            def flows(_: NodeStatus, before: int = before) -> bool:
                return load.counts.get("PUT_OK", 0) > before + 20

            await world.wait_until(master, "puts become PUT_OK again", flows)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 50)
    world.expect(
        tally.all_are(PutMessageStatus.PUT_OK), "after the last one", counts=tally, load=load
    )

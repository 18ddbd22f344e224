"""35: a classic slave observes a replica group, and never catches up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

SLOW = 20_000  # bytes a second


@scenario(
    number=35,
    title="An observer that lags for ever",
    proves=(
        "a classic slave at the port for observers never counts and never delays a put, however"
        " far behind it is; after a failover it goes on at the new master"
    ),
)
async def slow_observer(world: World) -> None:
    """Its link carries 20 kB a second, and the group stores a megabyte in less than that."""
    a, b, _ = await world.start_group(3)
    observer = await world.start_slave("observer", master=a)
    await world.wait_healthy(observer)
    world.link(observer).slow(SLOW)
    tally = await world.put_many(a, 1_000)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "no put waits for it", counts=tally)
    slowest_s = max(put.ended_s - put.invoked_s for put in tally.operations)
    status = await world.status(a)
    world.expect(_lag(status) > 0, "though it lags", lag=_lag(status), slowest_s=f"{slowest_s:.3f}")
    assert status.sync_state is not None
    world.expect(status.sync_state.members == (1, 2, 3), "and is no member")

    async with world.load(a, in_flight=4):
        await world.promote(b)
    await world.follow(observer, master=b)
    put = await world.put(b)
    world.expect(put.status is PutMessageStatus.PUT_OK, "the new master serves", status=put.label)
    await world.wait_healthy(observer)
    status = await world.status(b)
    world.expect(
        len(status.observers) == 1
        and (await world.status(observer)).max_offset == status.max_offset,
        "the observer has the new master's log",
        ends_at=status.max_offset,
    )


def _lag(status: NodeStatus) -> int:
    """Return how many bytes the observers of a master lack."""
    return sum(row.lag_bytes or 0 for row in status.observers)

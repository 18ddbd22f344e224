"""46: a switchover to a node that lags, and to one that stops meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import (
    OperationRefusedError,
    PutMessageStatus,
    World,
    operations,
    scenario,
)

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.cluster.group_records import GroupView

LAG_MAX = 64 * 1024


@scenario(
    number=46,
    title="A switchover to a node that lags",
    proves=(
        "a switchover to a node that lags is refused, and changes nothing; where the successor"
        " stops meanwhile, the master takes the wish back and takes puts again"
    ),
)
async def switchover_refused(world: World) -> None:
    """The successor is frozen, and stays in the set."""
    a, b, c = await world.start_group(
        3,
        coordinator=1,
        min_in_sync_replicas=2,
        sync_state_timeout_ms=60_000,
        slave_timeout_ms=500,
    )
    await world.coordinator.wait_until("both say that they follow", _all_follow)
    await world.pause(b)
    tally = await world.put_many(a, 200)
    world.expect(not tally.counts.get("PUT_OK"), "b does not have them", counts=tally)
    await world.wait_until(a, "it lags", lambda status: _lag(status, b.node_id) > LAG_MAX)
    lags = {b.node_id: _lag(await world.status(a), b.node_id)}
    try:
        await world.coordinator.change(operations.switchover, b.node_id, lags=lags, lag_max=LAG_MAX)
    except OperationRefusedError as error:
        world.say(f"refused: {error}")
    else:
        world.expect(False, "the switchover is refused")
    view = await world.coordinator.view()
    world.expect(view.config.switchover is None, "nobody wishes anything", config=view.config)
    await world.resume(b)
    await world.wait_healthy(b)

    await world.coordinator.wait_until("both say that they follow", _all_follow)
    await world.pause(b)
    await world.coordinator.change(operations.switchover, b.node_id)
    await world.wait_until(a, "it takes no puts", lambda status: bool(status.puts_refused_because))
    put = await world.put(a)
    world.expect(
        put.status is PutMessageStatus.SERVICE_NOT_AVAILABLE,
        "a put is refused meanwhile, and not stored",
        status=put.label,
    )
    await world.coordinator.wait_until(
        "the wish is taken back", lambda view: view.config.switchover is None
    )
    await world.wait_until(a, "it takes puts", lambda status: not status.puts_refused_because)
    await world.resume(b)
    await world.wait_healthy(b)
    await world.wait_healthy(c)
    back = await world.put_many(a, 20)
    world.expect(back.all_are(PutMessageStatus.PUT_OK), "as before", counts=back)
    epochs = [record.epoch for record in (await world.coordinator.view()).history]
    world.expect(epochs == [1], "in one epoch", epochs=epochs)


def _lag(status: NodeStatus, node_id: int) -> int:
    assert status.sync_state is not None, "a master of a group"
    lags = [row.lag_bytes for row in status.sync_state.nodes if row.node_id == node_id]
    return max((lag for lag in lags if lag is not None), default=0)


def _all_follow(view: GroupView) -> bool:
    slaves = [member for member in view.members.values() if member.role == "slave"]
    return len(slaves) == 2 and all(each.link is not None for each in slaves)

"""19: a slave's log is longer than its master's."""

from __future__ import annotations

import re

from hastore_scenarios import PutMessageStatus, World, scenario


@scenario(
    number=19,
    title="A slave ahead of its master",
    proves=(
        "a slave whose log goes on where its master's ends is refused with both offsets, keeps"
        " every byte, and acknowledges nothing"
    ),
)
async def slave_ahead(world: World) -> None:
    """The slave was promoted for a while, then the former master took over again by mistake.

    RocketMQ's master would count the slave's first report as an acknowledgement, and answer every
    put below it PUT_OK.
    """
    master = await world.start_master("a")
    slave = await world.start_slave("b", master=master)
    await world.wait_healthy(slave)
    tally = await world.put_many(master, 30)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both have thirty", counts=tally)

    await world.stop(master)
    await world.promote(slave)
    await world.put_many(slave, 100)
    ahead = (await world.status(slave)).max_offset
    await world.stop(slave)
    await world.restart(master)
    behind = (await world.status(master)).max_offset

    await world.follow(slave, master=master)
    status = await world.wait_until(
        slave,
        "it says that the logs have diverged",
        lambda s: s.master_link is not None and s.master_link.state == "diverged",
    )
    world.expect(
        status.max_offset == ahead > behind,
        "its log has not changed",
        slave_at=status.max_offset,
        master_at=behind,
    )
    assert status.master_link is not None
    reason = status.master_link.reason or ""
    world.expect(
        _names(reason, behind, ahead),
        "the slave names its master's end and its own",
        reason=reason,
    )
    # It asked for an offset a little below its end: a slave compares its newest bytes first.
    refused = (await world.status(master)).refused
    world.expect(
        any(
            row.reported_offset is not None
            and behind < row.reported_offset <= ahead
            and _names(row.reason, behind, row.reported_offset)
            for row in refused
        ),
        "the master names the slave that it refused, and both offsets",
        refused=[row.reason for row in refused],
    )
    tally = await world.put_many(master, 20)
    world.expect(
        tally.all_are(PutMessageStatus.SLAVE_NOT_AVAILABLE),
        "the slave acknowledges no put below its end",
        counts=tally,
    )
    pushed = (await world.status(master)).push2_slave_max_offset or 0
    world.expect(pushed <= behind, "no offset of it counts as acknowledged", pushed=pushed)


def _names(reason: str, *offsets: int) -> bool:
    """Whether a sentence contains all of these numbers."""
    return set(map(str, offsets)) <= set(re.findall(r"\d+", reason))

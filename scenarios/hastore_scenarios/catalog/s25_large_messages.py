"""25: messages a hundred times as large as a transfer frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from hastore_scenarios import LinkMode, Node, PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus

MIB = 1024 * 1024
SIZE = 4 * MIB - 1024


@scenario(
    number=25,
    title="Large messages in small batches",
    proves=(
        "a message of 4 MiB that is sent to the slave in frames of 32 KiB is acknowledged only"
        " once its last byte has arrived"
    ),
)
async def large_messages(world: World) -> None:
    """With small ones between them; a slave killed in the middle of one fetches the rest."""
    config: dict[str, Any] = {
        "mapped_file_size": 16 * MIB,
        "slave_timeout_ms": 10_000,
        "ha_transfer_batch_size": 32 * 1024,
        "ha_transfer_batch_size_max": 32 * 1024,
    }
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    await _stop_inside_one(world, master, slave)
    large = await world.put_many(master, 3, size=SIZE, in_flight=2)
    small = await world.put_many(master, 20)
    world.expect(
        large.all_are(PutMessageStatus.PUT_OK) and small.all_are(PutMessageStatus.PUT_OK),
        "large and small messages are acknowledged",
        large=large,
        small=small,
    )
    await world.kill(slave)
    await world.put_many(master, 2, size=SIZE, in_flight=2)
    end = (await world.status(master)).max_offset
    world.link(slave).slow(16 * MIB)
    await world.restart(slave)
    await world.wait_until(
        slave, "it is in the middle of one", lambda s: s.max_offset > end - 2 * SIZE
    )
    await world.kill(slave)
    world.link(slave).heal()
    await world.restart(slave)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "it has the rest", status=put.label)


async def _stop_inside_one(world: World, master: Node, slave: Node) -> None:
    """Cut the link to the slave in the middle of a message, then heal it."""
    # Four seconds for one message: time enough to check the status meanwhile.
    world.link(slave).slow(MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.put_many(master, 1, size=SIZE))
        await world.wait_until(
            master,
            "the slave acknowledges the message's beginning",
            lambda s: s.max_offset > SIZE and _acknowledged(s) > s.max_offset - SIZE,
        )
        world.link(slave).cut(LinkMode.CUT_TO_SLAVE)
        reached = (await world.status(slave)).max_offset
        status = await world.wait_until(
            master, "the slave acknowledges all that it has", lambda s: _acknowledged(s) >= reached
        )
        put = world.history.operations[-1]
        world.expect(
            _acknowledged(status) < status.max_offset and put.outcome is None,
            "the put waits for the message's last byte",
            acknowledged=_acknowledged(status),
            end=status.max_offset,
            status=put.label,
        )
        world.link(slave).heal()
    world.expect(put.status is PutMessageStatus.PUT_OK, "all of it has arrived", status=put.label)


def _acknowledged(status: NodeStatus) -> int:
    """Return the offset that the only slave has acknowledged."""
    return max((row.ack_offset or 0 for row in status.slaves), default=0)

"""25: messages a hundred times as large as what leaves for a slave at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hastore.status import PutMessageStatus
from scenarios.registry import scenario

if TYPE_CHECKING:
    from scenarios.world import World

MIB = 1024 * 1024
SIZE = 4 * MIB - 1024


@scenario(
    number=25,
    title="Large messages in small batches",
    proves=(
        "a message of 4 MiB that goes to the slave in frames of 32 KiB is acknowledged when its"
        " last byte is there, and not before"
    ),
)
async def large_messages(world: World) -> None:
    """Between them small ones; a slave that is killed in the middle of one fetches the rest."""
    config: dict[str, Any] = {
        "mapped_file_size": 16 * MIB,
        "slave_timeout_ms": 10_000,
        "ha_transfer_batch_size": 32 * 1024,
        "ha_transfer_batch_size_max": 32 * 1024,
    }
    master = await world.start_master("a", **config)
    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)

    large = await world.put_many(master, 3, size=SIZE, in_flight=2)
    small = await world.put_many(master, 20)
    world.expect(
        large.all_are(PutMessageStatus.PUT_OK) and small.all_are(PutMessageStatus.PUT_OK),
        "large and small ones",
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

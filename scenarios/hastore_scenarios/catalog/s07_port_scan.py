"""07: somebody who is no slave talks to the HA port."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import trio

from hastore_scenarios import Node, PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import Operation

# What strangers say.  An HA report is a bare big-endian i64, so anything is one.
STRANGE_WORDS: Final = (
    ("a web request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("-1", struct.pack(">q", -1)),
    ("the largest offset there is", struct.pack(">q", 2**63 - 1)),
    ("the smallest", struct.pack(">q", -(2**63))),
    ("one that is half there", b"\0\0\0\0"),
)


@scenario(
    number=7,
    title="A port scan acknowledges nothing",
    proves="no bytes on the HA port but a slave's own report can turn a put into PUT_OK",
)
async def port_scan(world: World) -> None:
    """Strangers speak while a put waits for a frozen slave; RocketMQ would answer PUT_OK here."""
    config: dict[str, Any] = {"ha_housekeeping_interval_ms": 20_000, "slave_timeout_ms": 1_500}
    master = await world.start_master("a", **config)

    stranger = await world.dial_ha(master)
    await stranger.send(STRANGE_WORDS[0][1])
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "a stranger alone is no slave",
        status=put.label,
    )
    await stranger.close()

    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)
    await world.pause(slave)
    end = (await world.status(master)).max_offset
    words = (*STRANGE_WORDS, ("just beyond the end", struct.pack(">q", end + 1_000_000)))
    for name, said in words:
        put = await _put_while_a_stranger_says(world, master, said)
        world.expect(
            put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
            f"{name} acknowledges nothing",
            status=put.label,
        )
    status = await world.status(master)
    pushed = status.push2_slave_max_offset or 0
    world.expect(pushed <= end, "what slaves have is not above what they got", pushed=pushed)
    world.expect(
        len(status.refused) >= 4, "status names who was refused", refused=len(status.refused)
    )

    await world.resume(slave)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "the slave's own does", status=put.label)


async def _put_while_a_stranger_says(world: World, master: Node, said: bytes) -> Operation:
    """Put a message, have a stranger speak while it waits, and give its outcome."""
    outcome: list[Operation] = []

    async def put() -> None:
        outcome.append(await world.put(master))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        await world.wait_until(
            master, "the put waits for a slave", lambda status: status.waiting_for_slave > 0
        )
        stranger = await world.dial_ha(master)
        await stranger.send(said)
        await stranger.read_to_end(within_s=0.2)
        await stranger.close()
    return outcome[0]

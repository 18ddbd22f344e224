"""07: unidentified peers send bytes to the HA port."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import trio

from hastore_scenarios import Node, PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import Operation

# An HA report is a bare big-endian i64, so any eight bytes are one.
BYTES_SENT: Final = (
    ("a web request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("-1", struct.pack(">q", -1)),
    ("the largest offset", struct.pack(">q", 2**63 - 1)),
    ("the smallest", struct.pack(">q", -(2**63))),
    ("half a report", b"\0\0\0\0"),
)


@scenario(
    number=7,
    title="A port scan acknowledges nothing",
    proves="no bytes on the HA port but a slave's own report can turn a put into PUT_OK",
)
async def port_scan(world: World) -> None:
    """Peers send bytes while a put waits for a frozen slave; RocketMQ would answer PUT_OK here."""
    config: dict[str, Any] = {"ha_housekeeping_interval_ms": 20_000, "slave_timeout_ms": 1_500}
    master = await world.start_master("a", **config)

    peer = await world.dial_ha(master)
    await peer.send(BYTES_SENT[0][1])
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE,
        "an unidentified peer is not a slave",
        status=put.label,
    )
    await peer.close()

    slave = await world.start_slave("b", master=master, **config)
    await world.wait_healthy(slave)
    await world.pause(slave)
    end = (await world.status(master)).max_offset
    sent = (*BYTES_SENT, ("an offset beyond the end", struct.pack(">q", end + 1_000_000)))
    for name, data in sent:
        put = await _put_while_a_peer_sends(world, master, data)
        world.expect(
            put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
            f"{name} acknowledges nothing",
            status=put.label,
        )
    status = await world.status(master)
    pushed = status.push2_slave_max_offset or 0
    world.expect(pushed <= end, "nothing counts as acknowledged that was not sent", pushed=pushed)
    world.expect(
        len(status.refused) >= 4, "status names the refused peers", refused=len(status.refused)
    )

    await world.resume(slave)
    await world.wait_healthy(slave)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "its own report does", status=put.label)


async def _put_while_a_peer_sends(world: World, master: Node, data: bytes) -> Operation:
    """Put a message, send ``data`` from a peer while the put waits, and return the put."""
    outcome: list[Operation] = []

    async def put() -> None:
        outcome.append(await world.put(master))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        await world.wait_until(
            master, "the put waits for a slave", lambda status: status.waiting_for_slave > 0
        )
        peer = await world.dial_ha(master)
        await peer.send(data)
        await peer.read_to_end(within_s=0.2)
        await peer.close()
    return outcome[0]

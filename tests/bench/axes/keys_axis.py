"""Appends with the dispatch beside them, by keys a message: no key, UNIQ_KEY, and one more.

As in ``dispatch_bench``, the clock stops when every message is in its consume queue and each key in
the index.  The bare loop packs, takes both checksums and copies each record into a map
(``append_bench``), packs a unit, and for each key takes a checksum in place of Java's hash and sets
a slot and an entry.
"""

from __future__ import annotations

import gc
import struct
import time
import zlib
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio

from tests.bench.append_bench import FILE_NAME, bare_us
from tests.bench.axes.axis import Axis
from tests.bench.axes.child import Answer, Child, options, serve, settle
from tests.bench.axes.measured import BARE, PURE, Point, Scale, in_turn, node_variants
from tests.bench.dispatch_bench import append_rate
from tests.bench.nodes import scratch

KEYS = (0, 1, 2)
UNIT = struct.Struct(">qiq")
ENTRY = struct.Struct(">iqii")
SLOT = struct.Struct(">i")
SLOTS = 500_000


def keys_axis() -> Axis:
    """Return the axis; ``rate`` is that of one process that appends and dispatches."""
    labels = {f"{keys} key{'' if keys == 1 else 's'}": keys for keys in KEYS}
    return Axis(
        "keys",
        "append with dispatch, by keys a message",
        ("rate",),
        {label: partial(measure_keys, label, keys) for label, keys in labels.items()},
    )


async def measure_keys(label: str, keys: int, base: Path, scale: Scale) -> list[Point]:
    """Measure one number of keys, each variant in a process of its own."""
    with ExitStack() as stack:
        children = {
            variant: stack.enter_context(
                Child(
                    "tests.bench.axes.keys_axis",
                    is_pure=variant == PURE,
                    base=str(base),
                    is_bare=variant == BARE,
                )
            )
            for variant in (*node_variants(), BARE)
        }

        def sample(child: Child) -> Answer:
            answer = child.ask(keys=keys, count=scale.appended)
            settle([child.pid])
            return answer

        samplers = {variant: partial(sample, child) for variant, child in children.items()}
        return [Point(label, keys, in_turn(samplers, scale))]


async def main(given: dict[str, Any]) -> None:
    """Be the child: append ``count`` messages for each command."""

    async def act(keys: int, count: int) -> Answer:
        with scratch(Path(given["base"]), "bare" if given["is_bare"] else "log") as path:
            if not given["is_bare"]:
                rate, _ = await append_rate(path, keys=keys, count=count)
                return {"rate": rate}
            us = bare_us(path / FILE_NAME, count) + bare_dispatch_us(keys, count)
            return {"rate": 1e6 / us}

    await serve({}, act)


def bare_dispatch_us(keys: int, count: int) -> float:
    """Pack units and index entries; return µs a message."""
    queue = memoryview(bytearray(count * UNIT.size))
    entries = memoryview(bytearray(count * max(keys, 1) * ENTRY.size))
    slots = memoryview(bytearray(SLOTS * SLOT.size))
    texts = [[f"Bench#order-{key}-{number}" for key in range(keys)] for number in range(count)]
    pack_unit, pack_entry, pack_slot = UNIT.pack_into, ENTRY.pack_into, SLOT.pack_into
    crc32, unpack_slot = zlib.crc32, SLOT.unpack_from
    filled = 0
    gc.collect()
    began = time.perf_counter()
    for number in range(count):
        offset = number * 1_229
        pack_unit(queue, number * 20, offset, 1_229, 0)
        for text in texts[number]:
            hashed = crc32(text.encode()) & 0x7FFFFFFF
            at = hashed % SLOTS * 4
            (previous,) = unpack_slot(slots, at)
            pack_entry(entries, filled * 20, hashed, offset, number // 1_000, previous)
            pack_slot(slots, at, filled)
            filled += 1
    return (time.perf_counter() - began) / count * 1e6


if __name__ == "__main__":
    trio.run(main, options())

"""Catch-up of a fresh slave until consumers can read all of it, by size of the bodies.

Each variant has a master process with a log of its own; each round is a new slave process on an
empty directory.  The bare loop is sendfile, recv_into and pwrite, without a look at the records.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hastore.config import MIB
from tests.bench.axes.axis import Axis
from tests.bench.axes.child import settle
from tests.bench.axes.measured import BARE, PURE, Point, Round, Scale, in_turn, node_variants
from tests.bench.catch_up_bench import run, write_log
from tests.bench.nodes import node_process, scratch

BODY_SIZES = {"1 KiB": 1024, "16 KiB": 16 * 1024}
FIGURE = "gb_per_s"


def readable_axis() -> Axis:
    """Return the axis; ``gb_per_s`` until all is readable, the copied ones until all is there."""
    return Axis(
        "readable",
        "catch-up of a fresh slave until consumers can read all, by size of the bodies",
        (FIGURE, "copied_gb_per_s", "rss_mib"),
        {label: partial(measure_bodies, label, size) for label, size in BODY_SIZES.items()},
    )


async def measure_bodies(label: str, body_size: int, base: Path, scale: Scale) -> list[Point]:
    """Measure one size."""
    size = 0
    samplers: dict[str, Callable[[], Round]] = {}
    async with contextlib.AsyncExitStack() as stack:
        masters = []
        for variant in node_variants():
            size = write_log(base / variant, scale.log_mib * MIB, body_size)
            is_pure = variant == PURE
            master = await stack.enter_async_context(
                node_process(
                    "master", "master", "--broker-role", "ASYNC_MASTER",
                    "--ha-listen", "127.0.0.1:0", path=base / variant, is_pure=is_pure,
                )
            )  # fmt: skip
            assert master.ha_address is not None
            masters.append(master.process.pid)
            host, port = master.ha_address
            samplers[variant] = _sampler(
                base, "tests.bench.slave_process", f"{host}:{port}", size, is_pure=is_pure
            )
        logs = base / variant / "commitlog"
        samplers[BARE] = _sampler(base, "tests.bench.bare_copy", logs, size, "pwrite")
        settle(masters)  # each dispatches its own log first
        for sample in samplers.values():
            sample()  # the first warms the page cache
        rounds = in_turn(samplers, scale, FIGURE)
    note = f"a log of {size / MIB:.0f} MiB"
    return [Point(label, body_size, rounds, FIGURE, note)]


def _sampler(base: Path, module: str, *arguments: object, is_pure: bool = False):
    def sample() -> Round:
        os.sync()  # no write-back of the last round during this one
        with scratch(base, "slave") as path:
            copied = run(module, path, *arguments, is_pure=is_pure)
        return {
            FIGURE: copied.readable_gb_per_s,
            "copied_gb_per_s": copied.gb_per_s,
            "rss_mib": copied.rss_anon_mib,
        }

    return sample

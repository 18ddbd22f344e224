"""What nodes use while nobody sends: CPU, and anonymous memory after a load.

`hastore master` and `hastore slave` as processes, with default heartbeats, after a round of the
centre's load from a client.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.bench.axes.axis import Axis
from tests.bench.axes.child import cpu_s
from tests.bench.axes.load import Load
from tests.bench.axes.measured import PURE, Point, Round, Scale, node_variants
from tests.bench.axes.put_axes import node_cluster
from tests.bench.nodes import anonymous_mib

CPU_PERCENT_MAX = 1.0
RSS_MIB_MAX = 80.0
NODES = ("master", "slave")


def idle_axis() -> Axis:
    """Return the axis; ``cpu_percent`` of one CPU."""
    figures = ("cpu_percent", "rss_mib")
    return Axis("idle", "nodes that nobody uses", figures, {"idle": measure_idle})


async def measure_idle(base: Path, scale: Scale) -> list[Point]:
    """Load all variants, then leave them alone together."""
    load = Load(over_tcp=True)
    pids: dict[tuple[str, str], int] = {}
    async with contextlib.AsyncExitStack() as stack:
        for variant in node_variants():
            cluster = await stack.enter_async_context(
                node_cluster(base / variant, load, is_pure=variant == PURE)
            )
            cluster.round(load, scale)
            pids |= {(node, variant): cluster.pids[node][0] for node in NODES}
        time.sleep(min(1.0, scale.idle_s))  # the last flush, the next file
        before = {key: cpu_s(pid) for key, pid in pids.items()}
        began = time.monotonic()
        time.sleep(scale.idle_s)
        passed_s = time.monotonic() - began
        points = []
        for node in NODES:
            rounds: dict[str, list[Round]] = {}
            for variant in node_variants():
                pid = pids[node, variant]
                share = (cpu_s(pid) - before[node, variant]) / passed_s
                rounds[variant] = [{"cpu_percent": share * 100, "rss_mib": anonymous_mib(pid)}]
            points.append(Point(node, 0, rounds, "cpu_percent", _verdict(rounds)))
        return points


def _verdict(rounds: dict[str, list[Round]]) -> str:
    holds = all(
        (each["cpu_percent"] or 0) < CPU_PERCENT_MAX and (each["rss_mib"] or 0) <= RSS_MIB_MAX
        for figures in rounds.values()
        for each in figures
    )
    limits = f"below {CPU_PERCENT_MAX:g} % of a CPU and at most {RSS_MIB_MAX:g} MiB"
    return f"{limits}: {'holds' if holds else 'MISSED'}"

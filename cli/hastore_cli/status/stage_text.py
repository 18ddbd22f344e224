"""The latencies of a node's stages as lines for people.

::

     stage            count      p50      p99       max    since the start
     append             812   6.1 µs  12.0 µs  310.2 µs
     acknowledged    30 112   1.1 ms   3.8 ms   12.0 ms
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.quantities import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.observe.node_status import NodeStatus


def stage_lines(status: NodeStatus) -> Iterator[Text]:
    """One line for each stage of which something is known."""
    if not status.stages:
        return
    yield Text(
        f" {'stage':<13}{'count':>12}{'p50':>11}{'p99':>11}{'max':>11}    since the start",
        style="dim",
    )
    for stage, data in status.stages.items():
        histogram = LatencyHistogram.from_dict(data)
        cells = [format_count(histogram.count)]
        for share in (0.5, 0.99):
            found = histogram.quantile_s(share)
            cells.append("-" if found is None else format_duration(found))
        cells.append(format_duration(histogram.max_s) if histogram.count else "-")
        yield Text(f" {stage:<13}{cells[0]:>12}{cells[1]:>11}{cells[2]:>11}{cells[3]:>11}")

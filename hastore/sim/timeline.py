"""The lines of a trace that help to find out what went wrong.

Faults, boots and ends, the put concerned and its answer, the violation, and the errors that nodes
log.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.sim.simulation import SimResult
    from hastore.sim.trace import TraceEntry

_PUT = re.compile(r"put (\d+)\b")


def timeline(result: SimResult, *, everything: bool = False) -> Sequence[TraceEntry]:
    """Return the entries that help, or ``everything``."""
    if everything:
        return result.entries
    put = None if result.violation is None else result.violation.put
    return [entry for entry in result.entries if not entry.is_detail or _is_about(entry, put)]


def _is_about(entry: TraceEntry, put: int | None) -> bool:
    match = _PUT.match(entry.what)
    return match is not None and put is not None and int(match[1]) == put

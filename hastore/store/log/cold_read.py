"""Reads in steps: records far from the log's end may be on disk only, so a thread reads them.

    |  cold: read in a thread  ···  |   COLD_DISTANCE   | max_offset
                                    └ hot: read at once ┘

A read of a queue needs units, which belong to the event loop, and records, which any thread may
read.  So it is a generator: it reads units, and yields each read of records as a ``ReadStep`` for
the driver to run, here or in a thread; the driver sends the result back.  Between two steps files
may expire and queues grow.

Invariant: a step touches only the log and the state of its own read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

COLD_DISTANCE: Final = 32 * 1024 * 1024

T = TypeVar("T")


class ReadStep(NamedTuple):
    """A read of records from ``physic_offset`` on; it may raise DiskError."""

    physic_offset: int
    read: Callable[[], Any]


ReadSteps: TypeAlias = "Generator[ReadStep, Any, T]"


def is_cold(physic_offset: int, max_offset: int) -> bool:
    """Whether a read at an offset may wait for the disk, if the log ends at ``max_offset``."""
    return max_offset - physic_offset >= COLD_DISTANCE

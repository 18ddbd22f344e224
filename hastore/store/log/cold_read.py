"""Reads in steps: what lies far behind the log's end may be on the disk only, and takes a thread.

    |  cold: read in a thread  ···  |   COLD_DISTANCE   | max_offset
                                    └ hot: read at once ┘

A read of a queue looks at units, which belong to the event loop, and at records, which anybody may
read.  So it is a generator: it looks at units, and yields each read of records as a ``ReadStep``
for its driver to run, here or in a thread; what comes of it is sent back.  Between two steps the
world may change: files expire, queues grow.

Invariant: a step touches nothing but the log and what its read has for itself alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

COLD_DISTANCE: Final = 32 * 1024 * 1024

T = TypeVar("T")


class ReadStep(NamedTuple):
    """A read of records, the oldest of which is at ``physic_offset``; it may raise DiskError."""

    physic_offset: int
    read: Callable[[], Any]


ReadSteps: TypeAlias = "Generator[ReadStep, Any, T]"


def is_cold(physic_offset: int, max_offset: int) -> bool:
    """Whether a read from an offset of a log that ends at ``max_offset`` may wait for the disk."""
    return max_offset - physic_offset >= COLD_DISTANCE


def run_here(steps: ReadSteps[T]) -> T:
    """Run all steps in this thread; blocks."""
    answer: Any = None
    try:
        while True:
            answer = steps.send(answer).read()
    except StopIteration as stop:
        result: T = stop.value
        return result

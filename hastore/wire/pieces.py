"""Work of many milliseconds as a generator, so that the event loop can run between its pieces.

::

    yield 0 ── piece ── yield size ── piece ── yield size ── … ── return the result

A piece takes some 2 ms at most.  What it yields is its size: bytes that were read or written.  Work
that has several pieces yields 0 before the first, and so may wait for its turn; work that has one
yields nothing.  ``hastore.concurrency.turns`` runs pieces in the event loop, ``at_once`` elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Pieces: TypeAlias = Generator[int, None, T]

ROWS_OF_A_PIECE: Final = 200  # that are checked or converted, some 5 µs each


def if_short(pieces: Pieces[T]) -> T | None:
    """Return the result of work that has one piece; None for longer work, which has not begun."""
    try:
        next(pieces)
    except StopIteration as done:
        result: T = done.value
        return result
    return None


def at_once(pieces: Pieces[T]) -> T:
    """Do all of the work; return its result."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: T = done.value
            return result

"""What the services of every layer have in common: how their end is read.

A service is a task with one entry, ``run``, that serves until cancelled.  Anything else than a
cancellation coming out of it is a failure.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_only_cancelled(error: BaseException) -> bool:
    """Whether ``error`` is a cancellation, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_cancelled(inner) for inner in error.exceptions)
    return isinstance(error, trio.Cancelled)


@contextlib.contextmanager
def as_itself() -> Iterator[None]:
    """Raise what our own nurseries have wrapped in groups as itself, if it is the only one."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group or isinstance(error, BaseExceptionGroup):
            raise
        raise error from error.__cause__

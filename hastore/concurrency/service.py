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
    """Raise what our own nurseries have wrapped in groups as itself, if it is the only one.

    Two tasks may raise the very same error: a disk that has failed fails for all that ask.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = {id(error): error for error in _leaves(group)}
        if len(errors) != 1:
            raise
        (error,) = errors.values()
        raise error from error.__cause__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error

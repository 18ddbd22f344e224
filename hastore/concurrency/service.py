"""What the services of every layer have in common: how their end is read.

A service is a task with one entry, ``run``, that serves until cancelled.  Anything else than a
cancellation coming out of it is a failure.
"""

from __future__ import annotations

import trio


def is_only_cancelled(error: BaseException) -> bool:
    """Whether ``error`` is a cancellation, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_cancelled(inner) for inner in error.exceptions)
    return isinstance(error, trio.Cancelled)

"""How a service ended: by a cancellation, or by a failure.

A service is a task with one entry, ``run``, that serves until cancelled.  If ``run`` raises
anything but a cancellation, the service has failed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from hastore.errors import FileLostError

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_only_cancelled(error: BaseException) -> bool:
    """Return whether ``error`` is a cancellation, or a group of cancellations."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_only_cancelled(inner) for inner in error.exceptions)
    return isinstance(error, trio.Cancelled)


@contextlib.contextmanager
def as_itself() -> Iterator[None]:
    """Unwrap an error from the groups of our nurseries, if it is the only one.

    Several tasks may raise the same object: a failed disk fails all of them.  And several may find
    files lost in the same moment, which is one loss: the first is raised.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list({id(error): error for error in _leaves(group)}.values())
        if len(errors) > 1 and not all(isinstance(error, FileLostError) for error in errors):
            raise
        raise errors[0] from errors[0].__cause__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error

"""Descriptors that a process keeps for its disk: files are opened even when no other is left.

::

    open, mmap ── EMFILE ──▶ the spare ones are closed, and the call is made once more
               ── success ─▶ spare ones that are missing are opened again

Clients, links and log files share one limit, ``RLIMIT_NOFILE``.  Without a reserve a burst of
clients would keep a node from making its next log file, or from changing its role.

One reserve for a process; empty until ``keep_spare``.  Any thread may open files.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

SPARE: Final = 16  # a next log file takes two, a small file one for a moment
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})

_lock = threading.Lock()
_spare: list[int] = []
_wanted = 0


def keep_spare(count: int = SPARE) -> None:
    """Keep so many descriptors from now on; 0: none."""
    global _wanted  # noqa: PLW0603 - one reserve for a process, as there is one limit
    with _lock:
        _wanted = count
    _release()
    _refill()


def spare_count() -> int:
    """Return how many spare descriptors there are now."""
    return len(_spare)


def open_descriptor(path: str, flags: int, mode: int = 0o644) -> int:
    """Open a file as ``os.open`` does, with a spare descriptor if there is no other.

    Raises OSError.
    """
    return _with_spare(lambda: os.open(path, flags | os.O_CLOEXEC, mode))


def map_descriptor(descriptor: int, size: int) -> mmap.mmap:
    """Map a file, which takes a descriptor of its own.  Raises OSError."""
    return _with_spare(lambda: mmap.mmap(descriptor, size))


def _with_spare(call: Callable[[], T]) -> T:
    try:
        made = call()
    except OSError as error:
        if error.errno not in EXHAUSTED or not _wanted:
            raise
        _release()  # unless another thread just has: then there may be one for this call, too
        return call()
    if len(_spare) < _wanted:
        _refill()
    return made


def _release() -> None:
    """Close the spare descriptors."""
    with _lock:
        while _spare:
            os.close(_spare.pop())


def _refill() -> None:
    with _lock, contextlib.suppress(OSError):
        while len(_spare) < _wanted:
            _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

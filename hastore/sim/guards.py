"""Forbids what would make a run differ from its replay: real time, threads, real randomness.

The product asks its environment for all of these; a call that bypasses it is a defect and raises
here.  Other threads of the process are not part of the run, and not affected.  The clock of
``datetime`` cannot be guarded, because the type is in C: only the linter forbids it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class LeakError(AssertionError):
    """Code called the real world in a simulated one."""


_CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_PLACES: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (time, _CLOCKS + tuple(f"{name}_ns" for name in _CLOCKS)),
    (time, ("clock_gettime", "clock_gettime_ns", "sleep")),
    (os, ("urandom", "getrandom", "fsync", "fdatasync")),
    (random, ("random", "randint", "randrange", "choice", "choices", "shuffle", "sample")),
    (random, ("uniform", "triangular", "getrandbits", "randbytes", "gauss", "seed")),
    (random, ("normalvariate", "lognormvariate", "expovariate", "vonmisesvariate")),
    (random, ("gammavariate", "betavariate", "paretovariate", "weibullvariate")),
    (random.SystemRandom, ("random", "getrandbits", "randbytes")),  # secrets uses it, too
    (uuid, ("uuid1", "uuid4")),
    (threading.Thread, ("start",)),
    (trio.to_thread, ("run_sync",)),
)
# Functions that call the real world only without the argument at this place.
_DEFAULTS: Final[tuple[tuple[Any, str, int], ...]] = (
    (time, "asctime", 0),
    (time, "ctime", 0),
    (time, "gmtime", 0),
    (time, "localtime", 0),
    (time, "strftime", 1),
    (random.Random, "seed", 1),  # after the generator itself
)


@contextlib.contextmanager
def leak_guards() -> Iterator[None]:
    """Raise LeakError if this thread calls the real world, as long as the block runs.

    Logging is off meanwhile: a log line has a time of the real world.
    """
    kept = []
    disabled = logging.root.manager.disable
    logging.disable()
    try:
        for owner, names in _PLACES:
            for name in names:
                if hasattr(owner, name):
                    function = getattr(owner, name)
                    kept.append((owner, name, function))
                    called = f"{getattr(owner, '__name__', owner)}.{name}"
                    setattr(owner, name, _refusal(called, function, threading.get_ident()))
        for owner, name, place in _DEFAULTS:
            function = getattr(owner, name)
            kept.append((owner, name, function))
            setattr(owner, name, _needs(name, place, function, threading.get_ident()))
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
        logging.disable(disabled)


def _refusal(name: str, function: Callable[..., Any], thread: int) -> Any:
    @functools.wraps(function)
    def refuse(*args: object, **kwargs: object) -> Any:
        if threading.get_ident() != thread:
            return function(*args, **kwargs)
        raise LeakError(f"{name} was called in a simulation: ask the environment (hastore.env)")

    return refuse


def _needs(name: str, place: int, function: Callable[..., Any], thread: int) -> Any:
    """Raise LeakError for a call without the argument at ``place``: its default is a real value."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if len(args) > place else kwargs.get("a")  # random's name for a seed
        if given is None and threading.get_ident() == thread:
            raise LeakError(f"{name} was left to ask the real world in a simulation")
        return function(*args, **kwargs)

    return call

"""Refuses whatever would make a run differ from its replay: real time, threads, real randomness.

The product asks its environment for all of these; what goes round it is a defect, found here as an
error at the very call.  Other threads of the process, which are no part of the run, go on as ever.
``datetime``'s clock cannot be guarded, for the type is C's: there the linter's ban is all there is.
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
    """Something asked the real world in a simulated one."""


_CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_PLACES: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (time, _CLOCKS + tuple(f"{name}_ns" for name in _CLOCKS)),
    (time, ("clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime", "sleep")),
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


@contextlib.contextmanager
def leak_guards() -> Iterator[None]:
    """Raise LeakError where this thread calls the real world, as long as the block runs.

    Nothing is logged meanwhile: a log line has a time of the real world.
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
        kept.append((random.Random, "seed", random.Random.seed))
        setattr(random.Random, "seed", _needs_seed(random.Random.seed, threading.get_ident()))  # noqa: B010 - mypy: a method
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


def _needs_seed(function: Callable[..., Any], thread: int) -> Any:
    """Refuse a generator without a seed: it takes one of the real world."""

    @functools.wraps(function)
    def seed(generator: random.Random, a: object = None, *args: object) -> Any:
        if a is None and threading.get_ident() == thread:
            raise LeakError("a generator without a seed in a simulation: ask the environment")
        return function(generator, a, *args)

    return seed

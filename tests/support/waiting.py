"""Waiting for a condition that no event reports: ``eventually`` and ``wait_until``.

Both fail after a generous limit, which does not say how long it should take (``tests.patience``).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import trio

from tests.patience import PROCESS_WITHIN_S, WITHIN_S


async def eventually(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    within_s: float = WITHIN_S,
    every_s: float = 0.002,
) -> None:
    """Poll ``condition``, which may be async, until it holds; fail after ``within_s``."""
    with trio.move_on_after(within_s):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            await trio.sleep(every_s)
    raise AssertionError(f"{what} did not come true within {within_s} s")


def wait_until(
    condition: Callable[[], object],
    what: Callable[[], object] = lambda: "the condition did not come true",
    *,
    within_s: float = PROCESS_WITHIN_S,
    every_s: float = 0.02,
) -> None:
    """Poll ``condition`` until it holds, without an event loop; fail after ``within_s``."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(every_s)

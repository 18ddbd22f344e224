"""Turns what the nodes log into entries of the trace, without real time and without output.

The nodes log through the stdlib logger ``hastore`` (``hastore.trace``), which is diverted during a
run.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEFT_OUT: Final = ("event", "level", "part", "timestamp")


@contextlib.contextmanager
def node_log(take: Callable[[int, str], None]) -> Iterator[None]:
    """Call ``take(level, text)`` for each event from INFO on, as long as the block runs."""
    logger: Any = logging.getLogger("hastore")

    def is_enabled_for(level: int) -> bool:
        return level >= logging.INFO

    def log(level: int, event: Any, *_args: object, **_kwargs: object) -> None:
        take(level, _text(event))

    own = {
        "disabled": False,
        "isEnabledFor": is_enabled_for,
        "getEffectiveLevel": lambda: logging.INFO,  # structlog asks this
        "_log": log,
    }
    before = {name: value for name, value in vars(logger).items() if name in own}
    vars(logger).update(own)  # an object's own attributes win over its class's
    try:
        yield
    finally:
        for name in own:
            del vars(logger)[name]
        vars(logger).update(before)


def _text(event: Any) -> str:
    if not isinstance(event, dict):
        return str(event)
    pairs = " ".join(f"{key}={event[key]}" for key in sorted(event) if key not in _LEFT_OUT)
    return f"{event.get('event')} {pairs}".rstrip()

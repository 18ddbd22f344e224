"""What commands of every topic share: one JSON document as the output, and the time of now."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from hastore_cli.app.terminal import tell_text

if TYPE_CHECKING:
    from collections.abc import Callable


def echo_json(
    value: object, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> None:
    """Print one JSON document; ``default`` as of ``json.dumps``."""
    tell_text(json_text(value, indent=indent, default=default))


def json_text(
    value: object, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    """Return a JSON document in ASCII, without control characters but its own line ends."""
    # DEL is the one control character that json does not escape.
    return json.dumps(value, indent=indent, default=default).replace("\x7f", "\\u007f")


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970, for times relative to now."""
    return time.time_ns() // 1_000_000

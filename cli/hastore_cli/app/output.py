"""What commands of every topic share: one JSON document as the output, and the time of now."""

from __future__ import annotations

import json
import time

import rich_click as click


def echo_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value))


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970, for times relative to now."""
    return time.time_ns() // 1_000_000

"""The options of ``format("hastore")``; an unknown one is an error.

Names are compared without case, as Spark does.
"""

from __future__ import annotations

import datetime as dt
import glob
import json
import os
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.columnar.log_range import Bounds
from hastore.columnar.row_filter import RowFilter
from hastore.errors import ConfigError
from hastore.quantities import read_digits
from hastore.store.log.store_directory import COMMIT_LOG_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PERMISSIVE: Final = "PERMISSIVE"
FAILFAST: Final = "FAILFAST"
NUMBER_MAX: Final = 2**63 - 1  # the greatest offset
_QUEUE_ID_MAX: Final = 2**31 - 1
_TASKS_MAX: Final = 100_000
_TIME_MAX_MS: Final = 253_402_300_799_999  # the year 9999
_NAMES: Final = (
    "path",
    "paths",
    "startOffset",
    "endOffset",
    "startTime",
    "endTime",
    "topic",
    "queueId",
    "mode",
    "fillers",
    "damaged",
    "unconfirmed",
    "rawBodies",
    "tasks",
    "cores",
    "filterPushdown",
    "startingOffset",
    "maxBytesPerTrigger",
    "failOnDataLoss",
)
_STREAM_NAMES: Final = ("startingOffset", "maxBytesPerTrigger", "failOnDataLoss")
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}


@final
@attrs.frozen(kw_only=True)
class ReadOptions:
    """The parsed options of a reader; offsets in bytes, times in ms."""

    stores: tuple[str, ...]
    start_offset: int | None = None
    end_offset: int | None = None
    start_time_ms: int | None = None
    end_time_ms: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    mode: str = PERMISSIVE
    fillers: bool = False  # whether BLANKs are rows too
    damaged: bool = False  # whether only damaged records are rows
    unconfirmed: bool = False  # whether records behind damage that nothing confirms are rows
    raw_bodies: bool = False  # whether compressed bodies stay compressed
    tasks: int | None = None
    cores: int | None = None
    filter_pushdown: bool = False
    starting_offset: str = "earliest"
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_batch: bool = False) -> ReadOptions:
        """Parse a reader's options; ``is_batch`` refuses those of streams.  Raises ConfigError."""
        given: dict[str, str] = {}
        for name, value in options.items():
            known = _BY_LOWER_NAME.get(name.lower())
            if known is None:
                raise ConfigError(
                    f"format hastore has no option {name!r}", hint=f"options: {', '.join(_NAMES)}"
                )
            if is_batch and known in _STREAM_NAMES:
                raise ConfigError(
                    f"option {known} is for streams only",
                    hint="a batch takes startOffset and endOffset",
                )
            given[known] = value
        mode = given.get("mode", PERMISSIVE).upper()
        if mode not in {PERMISSIVE, FAILFAST}:
            raise _invalid("mode", mode, "PERMISSIVE (damage as rows) or FAILFAST (an error)")
        parsed = cls(
            stores=_stores(given),
            start_offset=_number(given, "startOffset"),
            end_offset=_number(given, "endOffset"),
            start_time_ms=_time(given, "startTime"),
            end_time_ms=_time(given, "endTime"),
            topic=given.get("topic"),
            queue_id=_number(given, "queueId", most=_QUEUE_ID_MAX),
            mode=mode,
            fillers=_flag(given, "fillers", default=False),
            damaged=_flag(given, "damaged", default=False),
            unconfirmed=_flag(given, "unconfirmed", default=False),
            raw_bodies=_flag(given, "rawBodies", default=False),
            tasks=_number(given, "tasks", least=1, most=_TASKS_MAX),
            cores=_number(given, "cores", least=1, most=_TASKS_MAX),
            filter_pushdown=_flag(given, "filterPushdown", default=False),
            starting_offset=given.get("startingOffset", "earliest"),
            max_bytes_per_trigger=_number(given, "maxBytesPerTrigger", least=1),
            fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        )
        _in_order(given, "startOffset", parsed.start_offset, "endOffset", parsed.end_offset)
        _in_order(given, "startTime", parsed.start_time_ms, "endTime", parsed.end_time_ms)
        return parsed

    @property
    def bounds(self) -> Bounds:
        """The limits that decide which files are read."""
        return Bounds(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            start_time_ms=self.start_time_ms,
            end_time_ms=self.end_time_ms,
        )

    @property
    def row_filter(self) -> RowFilter:
        """The limits that decide which rows are returned."""
        return RowFilter(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            start_time_ms=self.start_time_ms,
            end_time_ms=self.end_time_ms,
            topic=self.topic,
            queue_id=self.queue_id,
            damaged=self.damaged,
        )


def _stores(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the stores of ``path``, or of ``paths`` (JSON, from ``load([…])``); globs expanded."""
    if "paths" in given:
        patterns = _patterns(given["paths"])
    elif "path" in given:
        patterns = [given["path"]]
    else:
        raise ConfigError(
            "format hastore needs a path", hint='spark.read.format("hastore").load("/data/n1")'
        )
    return find_stores(patterns)


def find_stores(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the directories that paths and globs name, each log once.  Raises ConfigError.

    A name that exists is never taken for a glob, so the result can be passed in again.  Of several
    names for one log (``n1``, ``n1/``, ``n1/commitlog``, a symbolic link) the first is returned.
    """
    stores: dict[str, str] = {}  # by real path
    for pattern in patterns:
        path = pattern.removeprefix("file://")
        is_glob = glob.has_magic(path) and not os.path.isdir(path)  # noqa: PTH112
        found = [path]
        if is_glob:
            found = [name for name in sorted(glob.glob(path)) if os.path.isdir(name)]  # noqa: PTH112, PTH207
        if not found:
            raise ConfigError(f"{pattern} matches no directory", hint="check the path")
        for name in found:
            place = os.path.realpath(name).removesuffix(f"/{COMMIT_LOG_DIR}")
            stores.setdefault(place, name)
    return tuple(stores.values())


def _patterns(text: str) -> list[str]:
    try:
        patterns = json.loads(text)
    except ValueError:
        patterns = None
    if not isinstance(patterns, list) or not all(isinstance(some, str) for some in patterns):
        raise _invalid("paths", text, "a JSON list of paths")
    if not patterns:
        raise ConfigError("no path is given", hint='spark.read.format("hastore").load("/data/n1")')
    return patterns


def _number(
    given: Mapping[str, str], name: str, *, least: int = 0, most: int = NUMBER_MAX
) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    number = read_digits(text)
    if number is None or not least <= number <= most:
        raise _invalid(name, text, f"a number from {least} to {most}")
    return number


def _in_order(
    given: Mapping[str, str], name: str, start: int | None, end_name: str, end: int | None
) -> None:
    if start is not None and end is not None and start > end:
        raise ConfigError(
            f"{name} {given[name]} is after {end_name} {given[end_name]}",
            hint="the start must not be after the end",
        )


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise _invalid(name, text, "true or false")
    return text == "true"


def _time(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    return None if text is None else time_ms(text, name)


def time_ms(text: str, name: str) -> int:
    """Parse a time in ms since 1970 or ISO 8601 (UTC by default).  Raises ConfigError."""
    number = read_digits(text)
    if number is not None and number <= _TIME_MAX_MS:
        return number
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise _invalid(name, text, "ms since 1970, or a time like 2026-11-21T10:00:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return round(moment.timestamp() * 1000)


def _invalid(name: str, text: str, wanted: str) -> ConfigError:
    return ConfigError(f"option {name}: {text!r} is not {wanted}", hint=f"use {wanted}")

"""The table of delay levels: ``1s 5s 10s … 2h``, level 1 being the first entry.

    level    1   2   3 …                       unit  s seconds   m minutes
    delay    1s  5s  10s …                           h hours     d days

A message with the property ``DELAY`` = level is kept in the topic ``SCHEDULE_TOPIC_XXXX``, queue
level - 1, until its store timestamp + delay; its consume queue's unit holds that time instead of
the tags code.  Source of the rules: RocketMQ's ``ScheduleMessageService`` and the dispatch of its
``CommitLog``.
"""

from __future__ import annotations

import re
from typing import Final, final

import attrs

from hastore.errors import ConfigError

LEVELS_MAX: Final = 1_024  # one queue each
DELAY_MS_MAX: Final = 366 * 24 * 3_600_000
UNKNOWN_LEVEL_DELAY_MS: Final = 1_000

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ENTRY: Final = re.compile(r"([0-9]{1,12})([smhd])")
_INT: Final = re.compile(r"[+-]?[0-9]{1,20}")
_INT_MAX: Final = 2**31 - 1


def is_level_text(text: str) -> bool:
    """Whether Java's ``Integer.parseInt`` accepts a text."""
    return _INT.fullmatch(text) is not None and -_INT_MAX - 1 <= int(text) <= _INT_MAX


def parse_level(text: str | None) -> int:
    """Read the value of ``DELAY``; 0 (no delay) if it is no number."""
    return int(text) if text is not None and is_level_text(text) else 0


@final
@attrs.frozen
class DelayLevels:
    """The delays in milliseconds, beginning with level 1."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """Read a configured table.  Raises ConfigError, which names the invalid entry."""
        delays_ms = []
        for entry in text.split():
            match = _ENTRY.fullmatch(entry)
            if match is None:
                msg = f"message_delay_level: {entry!r} is not a delay"
                raise ConfigError(msg, hint="a number and one of s m h d, for example: 1s 5m 2h")
            delay_ms = int(match[1]) * _UNIT_MS[match[2]]
            if delay_ms > DELAY_MS_MAX:
                msg = f"message_delay_level: {entry!r} is more than 366 days"
                raise ConfigError(msg)
            delays_ms.append(delay_ms)
        if not 1 <= len(delays_ms) <= LEVELS_MAX:
            msg = f"message_delay_level has {len(delays_ms)} entries; it takes 1 to {LEVELS_MAX}"
            raise ConfigError(msg)
        return cls(tuple(delays_ms))

    @property
    def level_max(self) -> int:
        """The highest level; a higher one in a message means this one."""
        return len(self.delays_ms)

    def clamp(self, level: int) -> int:
        """Return the level that ``level`` (1 or more) means here."""
        return min(level, self.level_max)

    def delay_ms(self, level: int) -> int | None:
        """Return a level's delay; None if the table has no such level."""
        return self.delays_ms[level - 1] if 1 <= level <= self.level_max else None

    def deliver_time_ms(self, level: int, store_timestamp_ms: int) -> int:
        """Return when a message is due: the tags code of its unit in the schedule topic.

        A level below 1, for which RocketMQ never calls this, is due after a second.
        """
        delay_ms = self.delay_ms(self.clamp(level))
        return store_timestamp_ms + (UNKNOWN_LEVEL_DELAY_MS if delay_ms is None else delay_ms)

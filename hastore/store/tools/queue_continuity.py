"""Checks that the queue offsets of a log count up by one in each queue, and names the exceptions.

Without ``__CRC32#`` no checksum covers a record's queue offset.  So if one breaks the count, the
next record of its queue decides what it is:

    41 42 977 44    the count goes on without it: 977 is a damaged 43
    41 42 977 978   the count goes on from it: odd, but written that way (a warning)
    41 42 0         the queue begins again, as that of a deleted topic does: a warning

After unreadable bytes each queue may skip forward once.  Transaction records of type PREPARED and
ROLLBACK have the queue offset 0 and are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.store.record.layout import (
    INNER_BATCH_FLAG,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.store.record.message_codec import inner_batch_count
from hastore.store.tools.log_finding import Finding, Severity, find_in_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.store.record.record_check import RecordCheck

KIND: Final = "queue-offset"
_UNCOUNTED_TYPES: Final = (TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE)


@attrs.frozen
class _Break:
    """A record that breaks the count of its queue."""

    physic_offset: int
    check: RecordCheck
    expected: int


@final
class QueueContinuity:
    """Checks queue offsets; the caller counts ``expected`` up, and calls ``see`` if it differs.

    ``expected`` maps (topic, queue id) to the next queue offset.  ``starts_at_zero``: the log has
    its first record, so every queue has, too.
    """

    def __init__(self, *, starts_at_zero: bool) -> None:
        self.expected: dict[tuple[bytes, int], int] = {}
        self._first: int | None = 0 if starts_at_zero else None
        self._may_skip: set[tuple[bytes, int]] = set()
        self._breaks: dict[tuple[bytes, int], _Break] = {}

    def skip_unreadable(self) -> None:
        """Record that records of unknown queues are missing here."""
        self._first = None
        self._may_skip = set(self.expected)

    def see(self, physic_offset: int, check: RecordCheck) -> Finding | None:
        """Check a record with an unexpected queue offset, or of a new queue."""
        if check.sys_flag & TRANSACTION_TYPE_MASK in _UNCOUNTED_TYPES:
            return None
        key = (check.topic, check.queue_id)
        found = check.queue_offset
        expected = self.expected.get(key, self._first)
        self.expected[key] = found + _count_of(check)
        if expected is None or expected == found:
            return None
        if key in self._may_skip and found > expected:
            self._may_skip.remove(key)
            return None
        earlier = self._breaks.pop(key, None)
        if earlier is not None and found == earlier.expected + 1:
            return _finding(earlier, Severity.DAMAGE, "; the next one of its queue is right")
        broken = _Break(physic_offset, check, expected)
        if check.has_prop_crc:
            return _finding(broken, Severity.WARNING, "")
        self._breaks[key] = broken
        return None if earlier is None else _finding(earlier, Severity.WARNING, "")

    def end(self) -> Iterator[Finding]:
        """Yield the breaks that no later record explained."""
        for key, broken in self._breaks.items():
            found = broken.check.queue_offset
            is_last = self.expected[key] == found + _count_of(broken.check)
            if is_last and found != 0:
                yield _finding(broken, Severity.DAMAGE, "; it is the last one of its queue")
            else:
                yield _finding(broken, Severity.WARNING, "")


def _count_of(check: RecordCheck) -> int:
    """Return how many queue offsets a record takes; a batch in one record takes several."""
    if check.sys_flag & INNER_BATCH_FLAG:
        return inner_batch_count(check.properties)
    return 1


def _finding(broken: _Break, severity: Severity, more: str) -> Finding:
    detail = f"queue offset {broken.check.queue_offset} where {broken.expected} was expected{more}"
    return find_in_record(severity, KIND, broken.physic_offset, broken.check, detail)

"""A finding: something damaged, or only odd, at one place of a log."""

from __future__ import annotations

import collections
import enum
import itertools
from typing import TYPE_CHECKING, Final

import attrs

from hastore.message import PROPERTY_KEYS
from hastore.store.record.message_codec import decode_properties
from hastore.store.record.record_check import RecordCheck, RecordKind

if TYPE_CHECKING:
    from collections.abc import Mapping

FINDINGS_MAX: Final = 1_000  # kept in a report of each severity; all are counted


class Severity(enum.Enum):
    """Damage: bytes are not those that were written.  A warning is odd, but may be right."""

    DAMAGE = "damage"
    WARNING = "warning"


@attrs.frozen(kw_only=True)
class Finding:
    """One place, which spans ``[physic_offset, next_offset)``.

    ``kind`` is a RecordKind's value, or ``queue-offset``, ``store-time``, ``properties``,
    ``topic``, ``sys-flag``, ``filler``, ``file-size``, ``file-order``, ``unfinished-cut``.  Topic,
    queue and key are the record's, None if they cannot be read.  ``unconfirmed``: intact records in
    it that nothing confirms (``queue.confirmed_records``).
    """

    severity: Severity
    kind: str
    physic_offset: int
    next_offset: int
    detail: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    key: str | None = None
    unconfirmed: int = 0


class Findings:
    """Collects findings: counts all, and keeps at most FINDINGS_MAX of each severity."""

    def __init__(self) -> None:
        self._kept: dict[Severity, list[Finding]] = {severity: [] for severity in Severity}
        self._counts: collections.Counter[tuple[Severity, str]] = collections.Counter()

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there is room."""
        self._counts[finding.severity, finding.kind] += 1
        kept = self._kept[finding.severity]
        if len(kept) < FINDINGS_MAX:
            kept.append(finding)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that were kept, in the log's order."""
        return tuple(sorted(itertools.chain(*self._kept.values()), key=lambda f: f.physic_offset))

    @property
    def counts(self) -> Mapping[tuple[Severity, str], int]:
        """Numbers of all findings by severity and kind."""
        return dict(self._counts)


@attrs.frozen(kw_only=True)
class FindingsReport:
    """A report with ``findings`` and ``counts`` of a ``Findings``."""

    findings: tuple[Finding, ...]
    counts: Mapping[tuple[Severity, str], int]

    def count(self, severity: Severity) -> int:
        """Return the number of findings of one severity."""
        return sum(count for (of, _), count in self.counts.items() if of is severity)

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return self.count(Severity.DAMAGE) == 0


# Kinds of damage whose record has no known size: its bytes are skipped as unreadable.
UNREADABLE_KINDS: Final = frozenset(
    kind.value
    for kind in (
        RecordKind.TORN,
        RecordKind.BAD_SIZE,
        RecordKind.BAD_MAGIC,
        RecordKind.BAD_LENGTHS,
        RecordKind.HOLE,
        RecordKind.MISSING,
    )
)


@attrs.frozen(kw_only=True)
class SetAside:
    """What damage without an end of its own hides: bytes, and intact records in them.

    Nothing confirms those records: a producer may have planted them in a body.
    """

    size: int = 0
    records: int = 0

    def with_finding(self, finding: Finding) -> SetAside:
        """Return the sum with one damaged place."""
        if finding.kind == RecordKind.MISSING.value or finding.kind not in UNREADABLE_KINDS:
            return self
        size = finding.next_offset - finding.physic_offset
        return SetAside(size=self.size + size, records=self.records + finding.unconfirmed)


def find_in_record(
    severity: Severity, kind: str, physic_offset: int, check: RecordCheck, detail: str
) -> Finding:
    """Make a finding about a record, with its fields that can be read."""
    is_readable = bool(check.topic or check.properties)
    return Finding(
        severity=severity,
        kind=kind,
        physic_offset=physic_offset,
        next_offset=physic_offset + check.size,
        detail=detail,
        topic=check.topic.decode(errors="surrogateescape") if is_readable else None,
        queue_id=check.queue_id if is_readable else None,
        queue_offset=check.queue_offset if is_readable else None,
        key=decode_properties(check.properties).get(PROPERTY_KEYS),
        unconfirmed=check.unconfirmed,
    )

"""Verifies every record of a log: its checksums, and the plausibility of what none covers.

    checksums         body CRC     the body
                      __CRC32#     the whole record, if it has one
    plausibility      magic, lengths, stored offset = position, filler to the file's end, files
                      without gaps, queue offsets that count up, store times that do not fall,
                      topics and property texts that a producer can have sent

Read-only.  Damage cannot have been written like this; a warning is odd, but may be right.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.quantities import format_span
from hastore.store.record.layout import SYS_FLAGS_KNOWN
from hastore.store.record.record_check import RecordCheck, RecordKind
from hastore.store.tools.log_finding import (
    Finding,
    Findings,
    FindingsReport,
    SetAside,
    Severity,
    find_in_record,
)
from hastore.store.tools.log_walker import LogWalker
from hastore.store.tools.queue_continuity import QueueContinuity
from hastore.topic import TOPIC_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory, LogFile

CLOCK_SLACK_MS: Final = 600_000  # machines' clocks may differ by so much
_NO_TIME: Final = 2**64  # later than any store time

# Names and values without NUL or separator; the last separator may be missing.
_PAIRS: Final = re.compile(
    rb"(?:[^\x00-\x02]++\x01[^\x00-\x02]*+\x02)*(?:[^\x00-\x02]++\x01[^\x00-\x02]*+)?"
)
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


@attrs.frozen(kw_only=True)
class VerifyReport(FindingsReport):
    """The result of a verification of ``[min_offset, max_offset)``.

    ``max_offset`` is the end of the last intact record.  ``messages`` counts intact messages,
    ``uncovered_messages`` those without a ``__CRC32#``.  ``set_aside`` is what damage hides: bytes,
    and intact records in them that nothing confirms.
    """

    path: str
    file_count: int
    mapped_file_size: int | None
    min_offset: int
    max_offset: int
    messages: int
    uncovered_messages: int
    fillers: int
    set_aside: SetAside
    strays: tuple[str, ...]


def verify_log(
    disk: Disk,
    log: LogDirectory,
    *,
    now_ms: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Read the whole log and report.  Raises DiskError if it cannot be read.

    Store times later than ``now_ms`` are reported; None: none are.
    """
    walker = LogWalker(disk, log, on_progress=on_progress)
    return _Verification(log, now_ms).run(walker)


@final
class _Verification:
    """One pass."""

    def __init__(self, log: LogDirectory, now_ms: int | None) -> None:
        self._log = log
        self._now_ms = now_ms
        self._latest_ms = _NO_TIME if now_ms is None else now_ms + CLOCK_SLACK_MS
        self._ahead: tuple[int, RecordCheck] | None = None  # the first record from the future
        self._ahead_count = 0
        self._queues = QueueContinuity(starts_at_zero=log.min_offset == 0)
        self._topics: set[bytes] = set()
        self._findings = Findings()
        self._set_aside = SetAside()

    def run(self, walker: LogWalker) -> VerifyReport:
        """Check every record, then the files."""
        expected = self._queues.expected
        topics, latest_ms = self._topics, self._latest_ms
        messages = uncovered = fillers = last_store_ms = 0
        for offset, check in walker.walk():
            kind, _, _, queue_id, queue_offset, sys_flag, store_ms, topic, text, has_prop_crc, _ = (
                check
            )
            if kind is not RecordKind.MESSAGE:
                fillers += kind is RecordKind.BLANK
                self._see_other(offset, check)
                continue
            messages += 1
            key = (topic, queue_id)
            if expected.get(key) == queue_offset and not sys_flag:
                expected[key] = queue_offset + 1
            else:
                self._see_queue_offset(offset, check)
            if topic not in topics:
                self._see_topic(offset, check)
            if not has_prop_crc:
                uncovered += 1
                if text and not (_PAIRS.fullmatch(text) and text.isascii()):
                    self._see_properties(offset, check)
            if store_ms < last_store_ms:
                self._see_store_time(offset, check, last_store_ms)
            last_store_ms = store_ms
            if store_ms > latest_ms:
                self._ahead = self._ahead or (offset, check)
                self._ahead_count += 1
        self._add_all(self._queues.end())
        self._add_all(check_files(self._log, walker.end_offset))
        self._see_unfinished_cut()
        self._see_times_ahead()
        return VerifyReport(
            path=self._log.path,
            file_count=len(self._log.files),
            mapped_file_size=self._log.mapped_file_size,
            min_offset=self._log.min_offset,
            max_offset=walker.end_offset,
            messages=messages,
            uncovered_messages=uncovered,
            fillers=fillers,
            set_aside=self._set_aside,
            findings=self._findings.findings,
            counts=self._findings.counts,
            strays=self._log.strays,
        )

    def _add_all(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._findings.add(finding)

    def _add(
        self, severity: Severity, kind: str, offset: int, check: RecordCheck, detail: str
    ) -> None:
        self._findings.add(find_in_record(severity, kind, offset, check, detail))

    def _see_unfinished_cut(self) -> None:
        cut = self._log.unfinished_cut
        if cut is None:
            return
        detail = (
            f"a cut at {cut.physic_offset} is not finished: bytes from there on, consume queues"
            " and index were not checked; a start of the node finishes it"
        )
        self._findings.add(
            Finding(
                severity=Severity.WARNING,
                kind="unfinished-cut",
                physic_offset=cut.physic_offset,
                next_offset=cut.end_offset,
                detail=detail,
            )
        )

    # -- one record ------------------------------------------------------------------------------

    def _see_other(self, offset: int, check: RecordCheck) -> None:
        if check.kind is not RecordKind.BLANK:
            self._queues.skip_unreadable()
            finding = find_in_record(Severity.DAMAGE, check.kind.value, offset, check, check.detail)
            self._set_aside = self._set_aside.with_finding(finding)
            self._findings.add(finding)
        elif check.detail:
            self._add(Severity.WARNING, "filler", offset, check, check.detail)

    def _see_queue_offset(self, offset: int, check: RecordCheck) -> None:
        finding = self._queues.see(offset, check)
        if finding is not None:
            self._findings.add(finding)
        if check.sys_flag & ~SYS_FLAGS_KNOWN:
            detail = f"sysFlag {check.sys_flag & 0xFFFFFFFF:08x} has unknown bits"
            self._add(Severity.WARNING, "sys-flag", offset, check, detail)

    def _see_topic(self, offset: int, check: RecordCheck) -> None:
        """Check a new topic, which the body CRC does not cover."""
        found = check_topic(check.topic)
        if found is None or found[0] is Severity.WARNING:
            self._topics.add(check.topic)  # once is enough
        if found is not None:
            self._add(found[0], "topic", offset, check, found[1])

    def _see_properties(self, offset: int, check: RecordCheck) -> None:
        """Check a property text that no checksum covers."""
        found = check_properties(check.properties)
        if found is not None:
            self._add(found[0], "properties", offset, check, found[1])

    def _see_store_time(self, offset: int, check: RecordCheck, earlier_ms: int) -> None:
        detail = f"stored {earlier_ms - check.store_timestamp_ms} ms before the record before it"
        self._add(Severity.WARNING, "store-time", offset, check, detail)

    def _see_times_ahead(self) -> None:
        if self._ahead is None or self._now_ms is None:
            return
        offset, check = self._ahead
        ahead = format_span((check.store_timestamp_ms - self._now_ms) / 1000)
        detail = f"stored {ahead} after this machine's time now"
        if self._ahead_count > 1:
            detail += f", the first of {self._ahead_count} messages from the future"
        self._add(Severity.WARNING, "store-time", offset, check, detail)


def check_topic(topic: bytes) -> tuple[Severity, str] | None:
    """Return what is wrong with a topic, None if nothing is."""
    if TOPIC_BYTES.fullmatch(topic):
        return None
    if not topic:
        return Severity.DAMAGE, "no topic"
    if _CONTROL.search(topic) or _is_no_text(topic):
        return Severity.DAMAGE, f"topic {topic!r} is not text"
    return Severity.WARNING, f"topic {topic.decode()!r} has characters that RocketMQ refuses"


def check_properties(text: bytes) -> tuple[Severity, str] | None:
    """Return what is wrong with a property text that no checksum covers, None if nothing is."""
    if b"\0" in text:
        severity, detail = Severity.DAMAGE, f"holds {text.count(0)} NUL bytes"
    elif _is_no_text(text):
        severity, detail = Severity.DAMAGE, "is not UTF-8"
    elif not all(b"\x01" in pair[1:] for pair in text.removesuffix(b"\x02").split(b"\x02")):
        severity, detail = Severity.DAMAGE, "has a pair without a name"
    elif not _PAIRS.fullmatch(text):
        severity, detail = Severity.WARNING, "has a separator inside a value"
    else:
        return None
    return severity, f"the property text {detail}"


def _is_no_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


# -- the files -----------------------------------------------------------------------------------


def check_files(log: LogDirectory, end_offset: int) -> Iterable[Finding]:
    """Yield findings about files of an uncommon size, overlaps and gaps.

    ``end_offset`` is the end of the last intact record or filler.
    """
    before: LogFile | None = None
    for file in log.files:
        if file.size != log.mapped_file_size:
            is_unfinished = file is log.files[-1] and end_offset <= file.physic_offset
            yield Finding(
                severity=Severity.WARNING if is_unfinished else Severity.DAMAGE,
                kind="file-size",
                physic_offset=file.physic_offset,
                next_offset=file.next_offset,
                detail=f"{file.name} has {file.size} bytes, the others {log.mapped_file_size}"
                + ("; it was never finished" if is_unfinished else ""),
            )
        if before is not None and before.next_offset > file.physic_offset:
            yield Finding(
                severity=Severity.DAMAGE,
                kind="file-order",
                physic_offset=file.physic_offset,
                next_offset=before.next_offset,
                detail=f"{file.name} begins before {before.name} ends",
            )
        elif before is not None and end_offset < before.next_offset < file.physic_offset:
            # The walk reports a gap before data; this one is after the log's end.
            yield Finding(
                severity=Severity.WARNING,
                kind="file-order",
                physic_offset=before.next_offset,
                next_offset=file.physic_offset,
                detail=f"{file.name} does not follow {before.name}; it holds nothing, and no node"
                " opens the log while it is there",
            )
        before = file

"""The messages of a log in order, checked, and the places where there is none to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_finding import Finding, Severity, find_in_record
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk
    from hastore.message import StoredMessage
    from hastore.store.tools.log_directory import LogDirectory

Entry: TypeAlias = "StoredMessage | Finding"


def read_entries(
    disk: Disk, log: LogDirectory, *, from_offset: int = 0, topic: str | None = None
) -> Iterator[Entry]:
    """Yield the messages at ``from_offset`` and behind it (of one topic), and any damage there.

    Raises DiskError where the log cannot be read.
    """
    walker = LogWalker(disk, log, from_offset=from_offset, scan_zeros=False)
    topic_bytes = None if topic is None else topic.encode(errors="surrogateescape")
    for offset, check in walker.walk():
        if offset < from_offset:
            continue
        if check.kind is RecordKind.MESSAGE:
            if topic_bytes is None or check.topic == topic_bytes:
                yield decode(walker.read(offset, check.size))
        elif check.kind is not RecordKind.BLANK:
            yield find_in_record(Severity.DAMAGE, check.kind.value, offset, check, check.detail)

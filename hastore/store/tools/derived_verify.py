"""Verifies the consume queues and the index of a log, record by record, in one pass.

Read-only, and a node may run meanwhile: records that it has not dispatched yet are ``behind``, not
missing.  ``hastore log rebuild`` rebuilds both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.store.index.layout import IndexLayout
from hastore.store.queue.deleted_topics import load_deleted
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.derived_record import derive
from hastore.store.record.record_check import RecordKind
from hastore.store.store_lock import ABORT_FILE
from hastore.store.tools.consume_queue_verify import ConsumeQueueVerification
from hastore.store.tools.derived_findings import DerivedFindings
from hastore.store.tools.index_verify import IndexVerification
from hastore.store.tools.log_finding import FindingsReport
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import StoreConfig
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory


@attrs.frozen(kw_only=True)
class DerivedReport(FindingsReport):
    """The result of a verification.

    ``units`` and ``keys`` count those found for their records.  ``has_consume_queues`` and
    ``has_index`` say whether there was anything to check.  ``units_behind`` and ``keys_behind``
    count records at the end that an open, or killed, store has not dispatched yet.
    """

    path: str
    is_open: bool
    records: int
    has_consume_queues: bool
    queues: int
    units: int
    units_behind: int
    has_index: bool
    index_files: int
    keys: int
    keys_behind: int


def verify_derived(
    disk: Disk,
    data_dir: str,
    log: LogDirectory,
    config: StoreConfig,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> DerivedReport:
    """Check consume queues and index of ``data_dir`` against its log, and report.

    ``config`` sets the index files' sizes and the delay levels.  ``on_progress`` is called with the
    bytes of each read of the log.  Raises DiskError if a file cannot be read.
    """
    is_open = disk.exists(f"{data_dir}/{ABORT_FILE}")
    findings = DerivedFindings(min_offset=log.min_offset, is_open=is_open)
    queues = ConsumeQueueVerification(
        disk, data_dir, config.mapped_file_size_consume_queue, findings
    )
    queues.deleted = load_deleted(disk, data_dir)
    layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
    index = IndexVerification(disk, data_dir, layout, findings)
    delay_levels = DelayLevels.parse(config.message_delay_level)
    walker = LogWalker(disk, log, check_crc=False, on_progress=on_progress)
    records = 0
    for offset, check in walker.walk():
        if check.kind is not RecordKind.MESSAGE:
            if check.kind is not RecordKind.BLANK:
                findings.record_unreadable(offset, offset + check.size)
            continue
        records += 1
        record = derive(
            check.topic.decode(errors="surrogateescape"),
            sys_flag=check.sys_flag,
            store_ms=check.store_timestamp_ms,
            properties=check.properties,
            delay_levels=delay_levels,
        )
        if queues.is_there and record.is_in_queue:
            queues.see(offset, check, record)
        if index.is_there:
            index.see(offset, check, record)
    queues.end(walker.end_offset)
    index.end(walker.end_offset)
    return DerivedReport(
        path=data_dir,
        is_open=is_open,
        records=records,
        has_consume_queues=queues.is_there,
        queues=queues.queue_count,
        units=queues.unit_count,
        units_behind=queues.behind,
        has_index=index.is_there,
        index_files=index.file_count,
        keys=index.key_count,
        keys_behind=index.behind,
        findings=findings.findings,
        counts=findings.counts,
    )

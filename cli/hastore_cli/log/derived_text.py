"""What ``log verify`` and ``log rebuild`` say of consume queues and index: lines and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.store.tools.log_finding import Severity
from hastore_cli.app.terminal import counted, label_row
from hastore_cli.log.log_json import finding_json
from hastore_cli.log.log_text import place_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.store.tools.derived_verify import DerivedReport
    from hastore.store.tools.rebuild import RebuildReport

REBUILD_SCHEMA: Final = "hastore.log-rebuild/1"
INDEX_NOT_READ: Final = (
    "the index was not checked: its files are of other sizes than configured; name the node's"
    " configuration with -c, or give HASTORE_STORE_INDEX_SLOTS and HASTORE_STORE_INDEX_ENTRIES"
)


def derived_lines(report: DerivedReport) -> Iterable[str]:
    """``hastore log verify``, behind what it says of the log."""
    if report.has_consume_queues:
        text = f"{counted(report.units, 'unit')} in {counted(report.queues, 'consume queue')}"
        yield label_row("queues", text + _behind(report.units_behind, "unit"))
    if report.has_index:
        text = f"{counted(report.keys, 'key')} in {counted(report.index_files, 'index file')}"
        yield label_row("index", text + _behind(report.keys_behind, "key"))
    for finding in report.findings:
        yield label_row(finding.severity.value, place_text(finding))
    left_out = sum(report.counts.values()) - len(report.findings)
    if left_out:
        yield label_row("note", f"{counted(left_out, 'more finding')} not shown")
    if is_index_unread(report):
        yield label_row("note", INDEX_NOT_READ)


def _behind(count: int, noun: str) -> str:
    return f", {counted(count, noun)} behind: not yet dispatched" if count else ""


def is_index_unread(report: DerivedReport) -> bool:
    """Whether there are index files, and none of them could be read as configured."""
    return report.index_files > 0 and not report.has_index


def derived_json(report: DerivedReport) -> dict[str, Any]:
    """``derived`` of ``hastore.log-verify/1``."""
    return {
        "whole": report.is_whole,
        "open": report.is_open,
        "records": report.records,
        "consume_queues": report.has_consume_queues,
        "queues": report.queues,
        "units": report.units,
        "units_behind": report.units_behind,
        "index": report.has_index,
        "index_files": report.index_files,
        "keys": report.keys,
        "keys_behind": report.keys_behind,
        "damage": report.count(Severity.DAMAGE),
        "warnings": report.count(Severity.WARNING),
        "counts": [
            {"severity": severity.value, "kind": kind, "count": count}
            for (severity, kind), count in report.counts.items()
        ],
        "findings": [finding_json(finding, finding.next_offset) for finding in report.findings],
    }


# -- rebuild -------------------------------------------------------------------------------------


def rebuild_lines(
    path: str, report: RebuildReport, *, consume_queues: bool, index: bool
) -> Iterable[str]:
    """``hastore log rebuild``."""
    if consume_queues:
        kept = ""
        if report.queues_kept:
            kept = (
                f"; {counted(report.queues_kept, 'queue')} without a record in the log: as before"
            )
        text = f"{counted(report.units, 'unit')} in {counted(report.queues, 'queue')}{kept}"
        yield label_row("rebuilt", f"{path}/consumequeue   {text}")
    if index:
        text = f"{counted(report.keys, 'key')} in {counted(report.index_files, 'file')}"
        yield label_row("rebuilt", f"{path}/index   {text}")
    yield label_row("from", counted(report.records, "message"))


def rebuild_json(
    path: str, report: RebuildReport, *, consume_queues: bool, index: bool
) -> dict[str, Any]:
    """``hastore log rebuild``."""
    return {
        "schema": REBUILD_SCHEMA,
        "path": path,
        "consume_queues": consume_queues,
        "index": index,
        "messages": report.records,
        "unreadable_places": report.unreadable,
        "end_offset": report.end_offset,
        "queues": report.queues,
        "queues_kept": report.queues_kept,
        "units": report.units,
        "keys": report.keys,
        "index_files": report.index_files,
    }

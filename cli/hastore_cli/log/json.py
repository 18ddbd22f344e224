"""The JSON of the ``log`` commands: stable keys under a schema.

``hastore.log-info/1``, ``-epochs/1``, ``-verify/1``, ``-diff/1``, ``-repair/1``, ``-rebuild/1``,
and one ``hastore.log-message/1`` a message of ``log cat`` (in a ``hastore.log-cat/1`` with
``-o json``).
Offsets, sizes and times (milliseconds since 1970) are numbers; an unknown value is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.store.tools.log_finding import SetAside, Severity
from hastore.store.tools.repair.plan import LOSING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.store.tools.derived_verify import DerivedReport
    from hastore.store.tools.log_diff import DiffReport, EpochComparison, LogSide
    from hastore.store.tools.log_epochs import LogEpochs
    from hastore.store.tools.log_finding import Finding
    from hastore.store.tools.log_info import LogInfo
    from hastore.store.tools.log_verify import VerifyReport
    from hastore.store.tools.rebuild import RebuildReport
    from hastore.store.tools.repair.log_repair import RepairReport
    from hastore.store.tools.repair.lost import LostMessages
    from hastore.store.tools.repair.plan import RepairPlan

CAT_SCHEMA: Final = "hastore.log-cat/1"


def info_json(info: LogInfo) -> dict[str, Any]:
    """Return ``hastore.log-info/1``."""
    return {
        "schema": "hastore.log-info/1",
        "path": info.path,
        "mapped_file_size": info.mapped_file_size,
        "min_offset": info.min_offset,
        "max_offset": info.max_offset,
        "size": info.size,
        "messages": info.messages,
        "messages_without_crc32": info.uncovered_messages,
        "first_store_timestamp_ms": info.first_store_timestamp_ms,
        "last_store_timestamp_ms": info.last_store_timestamp_ms,
        "abort": info.abort,
        "damaged_places": info.damaged_places,
        "strays": list(info.strays),
        "files": [
            {
                "name": file.name,
                "offset": file.physic_offset,
                "size": file.size,
                "used": file.used,
                "messages": file.messages,
            }
            for file in info.files
        ],
        "topics": [
            {
                "topic": topic.name,
                "messages": topic.messages,
                "queues": topic.queues,
                "size": topic.size,
            }
            for topic in info.topics
        ],
    }


def epochs_json(found: LogEpochs) -> dict[str, Any]:
    """Return ``hastore.log-epochs/1``; an epoch after the log's end has no ``end_offset``."""
    return {
        "schema": "hastore.log-epochs/1",
        "path": found.path,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "faults": list(found.faults),
        "damaged_at": found.damaged_at,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "start_offset": epoch.start_offset,
                "end_offset": epoch.end_offset,
                "size": epoch.size,
                "messages": epoch.messages,
                "first_store_timestamp_ms": epoch.first_store_timestamp_ms,
                "last_store_timestamp_ms": epoch.last_store_timestamp_ms,
            }
            for epoch in found.epochs
        ],
    }


def verify_json(report: VerifyReport, seconds: float) -> dict[str, Any]:
    """Return ``hastore.log-verify/1``; ``findings`` has the first thousand, ``counts`` all."""
    return {
        "schema": "hastore.log-verify/1",
        "path": report.path,
        "whole": report.is_whole,
        "files": report.file_count,
        "mapped_file_size": report.mapped_file_size,
        "min_offset": report.min_offset,
        "max_offset": report.max_offset,
        "messages": report.messages,
        "messages_without_crc32": report.uncovered_messages,
        "fillers": report.fillers,
        "set_aside": set_aside_json(report.set_aside),
        "damage": report.count(Severity.DAMAGE),
        "warnings": report.count(Severity.WARNING),
        "counts": [
            {"severity": severity.value, "kind": kind, "count": count}
            for (severity, kind), count in report.counts.items()
        ],
        "findings": [finding_json(finding, report.max_offset) for finding in report.findings],
        "strays": list(report.strays),
        "seconds": round(seconds, 3),
    }


def set_aside_json(found: SetAside) -> dict[str, Any]:
    """Return what damage hides, and the option of ``log cat`` that shows the records."""
    return {
        "bytes": found.size,
        "unconfirmed_records": found.records,
        "shown_by": "hastore log cat --unconfirmed" if found.records else None,
    }


def finding_json(finding: Finding, max_offset: int) -> dict[str, Any]:
    """Return one finding; ``next_offset`` is null if nothing readable follows it."""
    is_tail = finding.physic_offset >= max_offset
    return {
        "severity": finding.severity.value,
        "kind": finding.kind,
        "offset": finding.physic_offset,
        "size": finding.next_offset - finding.physic_offset,
        "next_offset": None if is_tail else finding.next_offset,
        "detail": finding.detail,
        "topic": finding.topic,
        "queue_id": finding.queue_id,
        "queue_offset": finding.queue_offset,
        "key": finding.key,
        "unconfirmed_records": finding.unconfirmed,
    }


def diff_json(report: DiffReport) -> dict[str, Any]:
    """Return ``hastore.log-diff/1``; ``behind`` is left, right or null.

    ``epochs`` is null unless both logs have some; ``consistent_offset`` is null if they share none.
    """
    behind = None
    if report.behind is not None:
        behind = "left" if report.behind is report.left else "right"
    return {
        "schema": "hastore.log-diff/1",
        "verdict": report.verdict.value,
        "left": _side_json(report.left),
        "right": _side_json(report.right),
        "common_from": report.common_from,
        "common_to": report.common_to,
        "first_difference": report.first_difference,
        "left_record": _place_json(report.left_place),
        "right_record": _place_json(report.right_place),
        "damage": _place_json(report.damage),
        "behind": behind,
        "bytes_behind": report.bytes_behind,
        "messages_behind": report.messages_behind,
        "epochs": None
        if report.epochs is None
        else _epochs_json(report.epochs, report.first_difference),
    }


def _epochs_json(epochs: EpochComparison, difference: int | None) -> dict[str, Any]:
    epoch, offset = epochs.point or (None, None)
    return {
        "consistent_epoch": epoch,
        "consistent_offset": offset,
        "contradicted": epochs.is_contradicted_by(difference),
        "fault": epochs.fault,
    }


def _side_json(side: LogSide) -> dict[str, Any]:
    tail = side.damaged_tail
    return {
        "path": side.path,
        "min_offset": side.min_offset,
        "max_offset": side.max_offset,
        "mapped_file_size": side.mapped_file_size,
        "damaged_tail": None if tail is None else finding_json(tail, side.max_offset),
    }


def _place_json(place: Finding | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {
        "kind": place.kind,
        "offset": place.physic_offset,
        "size": place.next_offset - place.physic_offset,
        "detail": place.detail,
        "topic": place.topic,
        "queue_id": place.queue_id,
        "queue_offset": place.queue_offset,
        "key": place.key,
    }


def derived_json(report: DerivedReport) -> dict[str, Any]:
    """Return ``derived`` of ``hastore.log-verify/1``."""
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


def rebuild_json(
    path: str, report: RebuildReport, *, consume_queues: bool, index: bool
) -> dict[str, Any]:
    """Return ``hastore.log-rebuild/1``."""
    return {
        "schema": "hastore.log-rebuild/1",
        "path": path,
        "consume_queues": consume_queues,
        "index": index,
        "messages": report.records,
        "unreadable_places": report.unreadable,
        "set_aside": set_aside_json(report.set_aside),
        "end_offset": report.end_offset,
        "queues": report.queues,
        "queues_kept": report.queues_kept,
        "units": report.units,
        "keys": report.keys,
        "index_files": report.index_files,
    }


def lost_size(plan: RepairPlan) -> int:
    """Return the bytes of the log whose messages are lost."""
    return sum(lost.stop - lost.start for lost in plan.lost)


def set_aside_by(plan: RepairPlan) -> SetAside:
    """Return what a repair copies away without putting a replica's bytes in its place."""
    records = sum(part.unconfirmed for part in plan.parts if part.action in LOSING)
    return SetAside(size=lost_size(plan), records=records)


def repair_json(
    plan: RepairPlan, lost: Iterable[LostMessages], report: RepairReport | None
) -> dict[str, Any]:
    """Return ``hastore.log-repair/1``: the plan, and with a report the result.

    ``lost`` are the messages that it loses, as far as they are known.
    """
    return {
        "schema": "hastore.log-repair/1",
        "path": plan.data_dir,
        "done": report is not None,
        "parts": [
            {
                "offset": part.start,
                "size": part.stop - part.start,
                "reason": part.reason,
                "action": part.action.value,
                "unconfirmed_records": part.unconfirmed,
            }
            for part in plan.parts
        ],
        "resized": list(plan.resized),
        "lost_bytes": lost_size(plan),
        "set_aside": set_aside_json(set_aside_by(plan)),
        "torn_at": plan.torn_at,
        "saved_paths": [] if report is None else list(report.saved_paths),
        "units_blanked": 0 if report is None else report.units_blanked,
        "lost_messages": [attrs.asdict(each) for each in lost],
        "unverified": None
        if report is None or report.unverified is None
        else attrs.asdict(report.unverified),
    }

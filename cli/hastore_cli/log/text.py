"""The lines that the ``log`` commands print for people.

::

    commit log  D1/commitlog   6 files of 64KiB   0 … 331 518
      ok         296 messages, 5 fillers
      damage     331 293   bad-lengths   its lengths add up to 135, not to size 225
                 110 bytes unreadable, nothing readable after it
      note       296 of 296 messages carry no __CRC32#: ...

Texts from the log are on one line, with control characters escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.quantities import format_duration, format_exact_size, format_size
from hastore.store.tools.log_diff import DiffVerdict
from hastore.store.tools.log_finding import UNREADABLE_KINDS, Severity
from hastore_cli.app.terminal import (
    LABEL_SIZE,
    columns,
    counted,
    escaped,
    label_row,
    number,
    style,
    time_text,
)
from hastore_cli.log.json import lost_size, set_aside_by

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.store.tools.derived_verify import DerivedReport
    from hastore.store.tools.log_diff import DiffReport, EpochComparison, LogSide
    from hastore.store.tools.log_epochs import LogEpochs
    from hastore.store.tools.log_finding import Finding, SetAside
    from hastore.store.tools.log_info import LogInfo
    from hastore.store.tools.log_verify import VerifyReport
    from hastore.store.tools.rebuild import RebuildReport
    from hastore.store.tools.repair.log_repair import RepairReport
    from hastore.store.tools.repair.lost import LostMessages
    from hastore.store.tools.repair.plan import RepairPlan

INDEX_NOT_READ: Final = (
    "the index was not checked: its files differ in size from the configuration, and no sizes fit"
    " their headers; name the node's configuration with -c, or set"
    " HASTORE_STORE_INDEX_SLOTS and HASTORE_STORE_INDEX_ENTRIES"
)
_RATED_SIZE_MIN: Final = 10_000_000


def _more(text: str) -> str:
    return f"  {'':{LABEL_SIZE}}  {text}"


def _head(path: str, files: int, file_size: int | None, min_offset: int, max_offset: int) -> str:
    sizes = f" of {format_exact_size(file_size)}" if file_size else ""
    extent = f"{number(min_offset)} … {number(max_offset)}"
    title = style("commit log", bold=True)
    return f"{title}  {escaped(path)}   {counted(files, 'file')}{sizes}   {extent}"


def _strays(strays: Iterable[str]) -> Iterable[str]:
    return [label_row("stray", f"{escaped(stray)} (ignored)") for stray in strays]


# -- info ----------------------------------------------------------------------------------------


def info_lines(info: LogInfo) -> Iterable[str]:
    """Yield the lines of ``hastore log info``."""
    yield _head(info.path, len(info.files), info.mapped_file_size, info.min_offset, info.max_offset)
    if info.first_store_timestamp_ms is None or info.last_store_timestamp_ms is None:
        yield label_row("messages", "none: the log is empty")
    else:
        first, last = info.first_store_timestamp_ms, info.last_store_timestamp_ms
        yield label_row("messages", number(info.messages))
        yield label_row("stored", f"{time_text(first)} … {time_text(last)}")
        covered = info.messages - info.uncovered_messages
        yield label_row("checksum", f"{number(covered)} of {number(info.messages)} carry __CRC32#")
    if info.abort is not None:
        yield label_row(
            "abort", "present: in use, or killed" if info.abort else "absent: stopped cleanly"
        )
    if info.damaged_places:
        places = counted(info.damaged_places, "place")
        yield label_row("damage", f"{places}; see: hastore log verify {info.path}")
    yield from _strays(info.strays)
    if info.files:
        yield ""
        yield from columns(
            ("messages", "used", "size", "file"),
            [(number(f.messages), number(f.used), number(f.size), f.name) for f in info.files],
        )
    if info.topics:
        yield ""
        yield from columns(
            ("messages", "queues", "bytes", "topic"),
            [
                (number(t.messages), number(t.queues), number(t.size), escaped(t.name))
                for t in info.topics
            ],
        )


# -- epochs --------------------------------------------------------------------------------------


def epoch_lines(found: LogEpochs) -> Iterable[str]:
    """Yield the lines of ``hastore log epochs``."""
    extent = f"{number(found.min_offset)} … {number(found.max_offset)}"
    title = style("epochs", bold=True)
    if not found.epochs:
        yield f"{title}  none   {extent}"
        return
    yield f"{title}  {escaped(found.path or '')}   {counted(len(found.epochs), 'epoch')}   {extent}"
    yield ""
    yield from columns(
        ("epoch", "from", "to", "bytes", "messages", "first stored"),
        [
            (
                number(epoch.epoch),
                number(epoch.start_offset),
                "-" if epoch.end_offset is None else number(epoch.end_offset),
                number(epoch.size),
                number(epoch.messages),
                ""
                if epoch.first_store_timestamp_ms is None
                else time_text(epoch.first_store_timestamp_ms),
            )
            for epoch in found.epochs
        ],
    )
    faults = list(found.faults)
    if found.damaged_at is not None:
        at = number(found.damaged_at)
        faults.append(f"the log itself is damaged, first at {at}; see: hastore log verify")
    if faults:
        yield ""
    for fault in faults:
        yield label_row("damage", fault)


# -- verify --------------------------------------------------------------------------------------


def verify_lines(report: VerifyReport) -> Iterable[str]:
    """Yield the lines of ``hastore log verify`` about the log."""
    yield _head(
        report.path,
        report.file_count,
        report.mapped_file_size,
        report.min_offset,
        report.max_offset,
    )
    yield label_row(
        "ok", f"{counted(report.messages, 'message')}, {counted(report.fillers, 'filler')}"
    )
    for finding in report.findings:
        yield label_row(finding.severity.value, place_text(finding))
        if finding.severity is Severity.DAMAGE and finding.kind in UNREADABLE_KINDS:
            yield _more(_unreadable_text(finding, report.max_offset))
    left_out = sum(report.counts.values()) - len(report.findings)
    if left_out:
        yield label_row("note", f"{counted(left_out, 'more finding')} not shown")
    yield from _unconfirmed_lines(report.set_aside, report.path, "")
    if report.uncovered_messages:
        yield label_row(
            "note",
            f"{number(report.uncovered_messages)} of {counted(report.messages, 'message')} carry no"
            " __CRC32#: no checksum covers their headers, topics and properties",
        )
    yield from _strays(report.strays)


def set_aside_text(found: SetAside) -> str:
    """Return the clause that says how much damage hides."""
    text = f"{counted(found.size, 'byte')} set aside"
    if found.records:
        text += f", with {counted(found.records, 'unconfirmed record')}"
    return text


def _unconfirmed_lines(found: SetAside, directory: str, holder: str) -> Iterable[str]:
    if found.records:
        yield label_row("note", f"{set_aside_text(found)}: no consume queue{holder} names them,")
        yield _more("so a producer may have planted them in a body; to see them:")
        yield _more(f"hastore log cat {escaped(directory)} --unconfirmed")


def read_line(report: VerifyReport, seconds: float) -> str:
    """Return the line that says how much was read, and how fast."""
    size = report.max_offset - report.min_offset
    # The rate of a small log would be that of the start.
    rate = f", {size / seconds / 1e9:.2f} GB/s" if size > _RATED_SIZE_MIN and seconds > 0 else ""
    return label_row("read", f"{format_size(size)} in {format_duration(seconds)}{rate}")


def place_text(finding: Finding) -> str:
    """Return a finding: its offset, its kind, and the message as far as it can be read."""
    parts = [number(finding.physic_offset), finding.kind, finding.detail, _message_text(finding)]
    return "  ".join(escaped(part) for part in parts if part)


def _message_text(finding: Finding) -> str:
    text = ""
    if finding.topic is not None:
        text = f"{finding.topic}/{finding.queue_id} @ {finding.queue_offset}"
    if finding.key is not None:
        text += f"  key {finding.key}"
    return text


def _unreadable_text(finding: Finding, max_offset: int) -> str:
    start, end = number(finding.physic_offset), number(finding.next_offset)
    size = counted(finding.next_offset - finding.physic_offset, "byte")
    after = f"next confirmed record at {end}"
    if finding.physic_offset >= max_offset:
        after = "nothing confirmed after it" if finding.unconfirmed else "nothing readable after it"
    return f"{size} unreadable from {start} to {end}, {after}"


# -- diff ----------------------------------------------------------------------------------------


def diff_lines(report: DiffReport) -> Iterable[str]:
    """Yield the lines of ``hastore log diff``."""
    left, right = report.left, report.right
    for name, side in (("left", left), ("right", right)):
        yield from _side_lines(name, side)
    common = f"{number(report.common_from)} … {number(report.common_to)}"
    match report.verdict:
        case DiffVerdict.EQUAL:
            yield label_row("equal", f"{common}, and both end there")
        case DiffVerdict.PREFIX:
            yield label_row("prefix", f"equal over {common}")
        case DiffVerdict.DISJOINT:
            yield label_row("disjoint", "no offset is in both: nothing was compared")
        case DiffVerdict.DIFFERENT:
            assert report.first_difference is not None
            same = f"{number(report.common_from)} … {number(report.first_difference)}"
            yield label_row(
                "different", f"first at {number(report.first_difference)}; equal over {same}"
            )
            for name, place in (("left", report.left_place), ("right", report.right_place)):
                yield _more(f"{name:<5}  {'in no file' if place is None else _place(place)}")
    if report.damage is not None:
        yield label_row("damage", f"both: {place_text(report.damage)}")
    if left.min_offset != right.min_offset:
        later = "left" if left.min_offset > right.min_offset else "right"
        size = abs(left.min_offset - right.min_offset)
        yield label_row("front", f"{later} begins {format_size(size)} later")
    if report.behind is not None:
        name = "left" if report.behind is left else "right"
        lacks = (
            f"{counted(report.bytes_behind, 'byte')}, {counted(report.messages_behind, 'message')}"
        )
        yield label_row("behind", f"{name} ends {lacks} earlier")
    if report.epochs is not None:
        yield from _epoch_comparison_lines(report.epochs, report.first_difference)
    if left.mapped_file_size and right.mapped_file_size not in {None, left.mapped_file_size}:
        yield label_row("note", "the file sizes differ: the logs are not replicas of each other")


def _epoch_comparison_lines(epochs: EpochComparison, difference: int | None) -> Iterable[str]:
    if epochs.fault is not None:
        yield label_row("note", f"not compared by epochs: {escaped(epochs.fault)}")
    elif epochs.point is None:
        yield label_row("epochs", "none in common")
    elif epochs.is_too_far_behind:
        at, start = number(epochs.point.offset), number(epochs.common_from)
        yield label_row("epochs", f"in common up to {at}, but one log begins at {start} only")
    else:
        epoch, offset = epochs.point
        text = f"consistent up to {number(offset)}, the last common epoch is {number(epoch)}"
        yield label_row("epochs", text)
    if epochs.is_contradicted_by(difference):
        yield label_row("damage", "the bytes differ where they should be equal by their epochs")


def _side_lines(name: str, side: LogSide) -> Iterable[str]:
    files = f"files of {format_exact_size(side.mapped_file_size)}" if side.mapped_file_size else ""
    extent = "empty"
    if not side.is_empty:
        extent = f"{number(side.min_offset)} … {number(side.max_offset)}"
    yield label_row(name, f"{escaped(side.path)}   {extent}   {files}".rstrip())
    if side.damaged_tail is not None:
        yield label_row(
            "damage", f"{name}: {place_text(side.damaged_tail)}; left out of the comparison"
        )


def _place(place: Finding) -> str:
    size = counted(place.next_offset - place.physic_offset, "byte")
    return f"{place_text(place)}  ({size})"


# -- consume queues and index --------------------------------------------------------------------


def derived_lines(report: DerivedReport) -> Iterable[str]:
    """Yield the lines of ``hastore log verify`` about consume queues and index."""
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
    """Whether there are index files but none of the configured size."""
    return report.index_files > 0 and not report.has_index


# -- rebuild -------------------------------------------------------------------------------------


def rebuild_lines(
    path: str, report: RebuildReport, *, consume_queues: bool, index: bool
) -> Iterable[str]:
    """Yield the lines of ``hastore log rebuild``."""
    if consume_queues:
        kept = ""
        if report.queues_kept:
            kept = f"; {counted(report.queues_kept, 'queue')} without a record in the log kept"
        text = f"{counted(report.units, 'unit')} in {counted(report.queues, 'queue')}{kept}"
        yield label_row("rebuilt", f"{path}/consumequeue   {text}")
    if index:
        text = f"{counted(report.keys, 'key')} in {counted(report.index_files, 'file')}"
        yield label_row("rebuilt", f"{path}/index   {text}")
    yield label_row("from", counted(report.records, "message"))
    yield from _unconfirmed_lines(report.set_aside, path, "")


# -- repair --------------------------------------------------------------------------------------


def plan_lines(plan: RepairPlan, lost: Iterable[LostMessages]) -> Iterable[str]:
    """Yield the lines of a planned repair; ``lost``: messages that it loses, as far as known."""
    for part in plan.parts:
        extent = f"{number(part.start)} to {number(part.stop)}"
        what = f"{counted(part.stop - part.start, 'byte')}, {escaped(part.reason)}"
        yield label_row(part.action.value, f"{extent} ({what}): {part.outcome}")
    for path in plan.resized:
        yield label_row(
            "resize", f"{escaped(path)} to {number(plan.file_size)} bytes, like the others"
        )
    if plan.torn_at is not None:
        at = number(plan.torn_at)
        yield label_row(
            "note", f"a torn end at {at}: the node's next start trims it, no repair needed"
        )
    yield from _lost_lines(lost)
    yield from _unconfirmed_lines(set_aside_by(plan), plan.data_dir, " and no replica")


def _lost_lines(lost: Iterable[LostMessages]) -> Iterable[str]:
    for each in lost:
        offsets = number(each.first)
        if each.last > each.first:
            offsets += f" to {number(each.last)}"
        what = f"{counted(each.count, 'message')} of {escaped(each.topic)}, queue {each.queue_id}"
        yield label_row("lost", f"{what}: queue offset {offsets}")


def done_lines(plan: RepairPlan, report: RepairReport) -> Iterable[str]:
    """Yield the lines of a repair that was carried out."""
    if plan.is_empty:
        yield label_row("ok", "an earlier repair is finished now: the whole log counts again")
        return
    for path in report.saved_paths:
        yield label_row("saved", escaped(path))
    if report.units_blanked:
        text = f"{counted(report.units_blanked, 'unit')} of lost messages removed"
        yield label_row("queues", text)
    places = counted(len(plan.parts) + len(plan.resized), "place")
    lost = lost_size(plan)
    how = f"; the messages of {format_size(lost)} are lost" if lost else "; nothing is lost"
    yield label_row("ok", f"{places} repaired{how}")
    found = set_aside_by(plan)
    if found.records:
        yield label_row("note", f"{set_aside_text(found)}: their bytes are in the copy above")
    if report.unverified is not None:
        text = "its node is not elected until it has compared its log with its master's"
        yield label_row("note", f"{text}: start it as a slave")

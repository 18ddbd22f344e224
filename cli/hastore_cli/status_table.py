"""A NodeStatus as people read it: who, how far, how far behind, what was refused and why.

::

    a  SYNC_MASTER, 1 ack (flushed)  ASYNC_FLUSH  up 12 min   serving · 1 of 1 slave caught up
    node  role    state      sent       written    flushed    acknowledged  lag  lag time  rate
    a     master  serving    1 841 231  1 841 231  1 839 002     1 841 231    -         -  1.2 MiB/s
    b     slave   streaming  1 841 231  1 841 231  1 841 231     1 841 231  0 B       0 s  1.2 MiB/s
     commit log 0 … 1 841 231 (1 file of 1GiB)  flushed 1 839 002  data D1  disk free 41.2 GiB

``sent`` and ``acknowledged`` of the master's own row are its end and ``push2_slave_max_offset``.
What a slave has written and flushed only the slave knows: ``-`` unless it was asked too.
Pure: a status in, something printable out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hastore_cli.quantities import format_count, format_duration, format_exact_size, format_size
from hastore_cli.send_tally import SEND_OK
from hastore_cli.stage_text import stage_lines
from hastore_cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.broker.node_status import MasterLink, NodeStatus, RefusalRow, SlaveRow

    Row = tuple[str, ...]

NOTHING: Final = "-"
REFUSALS_SHOWN_MAX: Final = 5
COMPARE_HINT: Final = "compare the two: hastore log diff MASTER_DIR SLAVE_DIR"
_COLUMNS: Final = (
    "node", "role", "address", "state", "sent", "written", "flushed", "acknowledged", "lag",
    "lag time", "age", "rate", "eta",
)  # fmt: skip
# On a narrow terminal go first those in which nothing is known, then these in this order.
_DISPENSABLE: Final = ("node", "written", "flushed", "rate", "age", "lag time", "eta")
_MAYBE_EMPTY: Final = ("eta", "written", "flushed", "node", "rate", "lag time")
_GAP: Final = 2
_NUMBERS: Final = frozenset({"sent", "written", "flushed", "acknowledged", "lag", "lag time"})
_STYLES: Final = {
    "serving": "green",
    "streaming": "green",
    "connected": "yellow",
    "catching-up": "yellow",
    "connecting": "yellow",
    "backing-off": "yellow",
    "stopping": "yellow",
    "refused": "red",
    "diverged": "red",
    "failed": "red",
}


class StatusTable:
    """Draws statuses at most ``width`` wide; ``grouped`` numbers are not for ``awk``."""

    def __init__(self, *, grouped: bool, width: int) -> None:
        self._width = width
        self._number: Callable[[int], str] = format_count if grouped else str

    def render(
        self,
        status: NodeStatus,
        *,
        written_bytes_per_s: float | None = None,
        extended: bool = False,
    ) -> Group:
        """Everything about one node; ``extended``: with the latencies of its stages."""
        return Group(
            self._headline(status),
            self._rows(status, written_bytes_per_s),
            *self._facts(status),
            *(stage_lines(status) if extended else ()),
            *self._troubles(status),
        )

    def _headline(self, status: NodeStatus) -> Text:
        line = Text()
        line.append(one_line(status.name), style="bold")
        line.append(
            f"  {_role(status)}  {status.flush_disk_type}  up {format_duration(status.uptime_s)}"
        )
        line.append("   ")
        line.append(status.state, style=_STYLES.get(status.state, ""))
        if status.master_link is None:
            caught_up = sum(slave.state == "streaming" for slave in status.slaves)
            number = len(status.slaves)
            line.append(
                f" · {caught_up} of {number} slave{'s' * (number != 1)} caught up"
                if number
                else " · no slave connected",
                style="" if number and caught_up == number else "yellow",
            )
        return line

    def _rows(self, status: NodeStatus, written_bytes_per_s: float | None) -> Table:
        link = status.master_link
        if link is not None:
            return self._fitted(self._own_link(status, link))
        rate = status.written_bytes_per_s if written_bytes_per_s is None else written_bytes_per_s
        own = (
            one_line(status.name),
            "master",
            status.address or NOTHING,
            status.state,
            self._number(status.max_offset),
            self._number(status.max_offset),
            self._number(status.flushed_offset),
            self._offset(status.push2_slave_max_offset),
            NOTHING,
            NOTHING,
            NOTHING,
            NOTHING if rate is None else _rate(rate),
            NOTHING,
        )
        return self._fitted([own, *(self._slave(slave) for slave in status.slaves)])

    def _fitted(self, rows: Sequence[Row]) -> Table:
        """The rows as a table, without the least needed columns where all have no room."""
        names = list(_COLUMNS)
        widths = {
            name: max(len(cell) for cell in column)
            for name, column in zip(names, zip(_COLUMNS, *rows, strict=True), strict=True)
        }
        empty = [
            name
            for name in _MAYBE_EMPTY
            if all(row[_COLUMNS.index(name)] == NOTHING for row in rows[1:] or rows)
        ]
        for name in dict.fromkeys((*empty, *_DISPENSABLE)):
            if sum(widths[kept] + _GAP for kept in names) <= self._width:
                break
            names.remove(name)
        table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
        for name in names:
            table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True)
        for row in rows:
            cells = dict(zip(_COLUMNS, row, strict=True))
            table.add_row(
                *(
                    Text(cells[name], style=_STYLES.get(cells[name], "") if name == "state" else "")
                    for name in names
                )
            )
        return table

    def _slave(self, slave: SlaveRow) -> Row:
        lag_time = _lag_time(slave.lag_s, "> " if slave.lag_s_is_least else "")
        return (
            NOTHING if slave.name is None else one_line(slave.name),
            "slave",
            slave.address,
            slave.state,
            self._offset(slave.sent_offset),
            self._offset(slave.written_offset),
            self._offset(slave.flushed_offset),
            self._offset(slave.ack_offset),
            NOTHING if slave.lag_bytes is None else format_size(slave.lag_bytes),
            lag_time,
            format_duration(slave.last_report_age_s),
            _rate(slave.rate_bytes_per_s),
            NOTHING if slave.eta_s is None else format_duration(slave.eta_s),
        )

    def _own_link(self, status: NodeStatus, link: MasterLink) -> list[Row]:
        """A slave: itself, then its master as far as it knows of it."""
        behind = link.lag_bytes
        if behind is None and link.master_offset is not None:
            behind = max(0, link.master_offset - status.max_offset)
        about = "~" if link.lag_is_estimate else ""
        age = link.last_read_age_s
        own = (
            one_line(status.name),
            "slave",
            status.address or NOTHING,
            status.state,
            NOTHING,
            self._number(status.max_offset),
            self._number(status.flushed_offset),
            self._offset(link.reported_offset),
            NOTHING if behind is None else about + format_size(behind),
            _lag_time(link.lag_s, about),
            NOTHING if age is None else format_duration(age),
            _rate(link.rate_bytes_per_s),
            NOTHING,
        )
        master_end = self._offset(link.master_offset)
        master = (NOTHING, "master", link.address, link.state, master_end, *[NOTHING] * 8)
        return [own, master]

    def _offset(self, offset: int | None) -> str:
        return NOTHING if offset is None else self._number(offset)

    def _facts(self, status: NodeStatus) -> list[Text]:
        files = f"{status.mapped_files} file{'s' * (status.mapped_files != 1)}"
        extent = f"{self._number(status.min_offset)} … {self._number(status.max_offset)}"
        facts = [
            f"commit log {extent} ({files} of {format_exact_size(status.mapped_file_size)})",
            f"flushed {self._number(status.flushed_offset)}",
            f"data {one_line(status.data_dir)}",
        ]
        if status.disk_free_bytes is not None:
            facts.append(f"disk free {format_size(status.disk_free_bytes)}")
        if status.dispatch_behind_bytes:
            facts.append(f"to dispatch {format_size(status.dispatch_behind_bytes)}")
        if status.ha_address is not None:
            facts.append(f"slaves at {status.ha_address}")
        lines = [Text(" " + "  ".join(facts))]
        puts = [
            f"{SEND_OK if name == 'PUT_OK' else name} {self._number(count)}"
            for name, count in status.put_counts.items()
            if count
        ]
        if puts:
            waiting = status.waiting_for_slave
            tail = f"   {self._number(waiting)} wait for a slave" if waiting else ""
            lines.append(Text(" puts since the start: " + "  ".join(puts) + tail))
        return lines

    def _troubles(self, status: NodeStatus) -> list[Text]:
        """What is wrong, each with why and what to do."""
        lines: list[Text] = []
        link = status.master_link
        if link is not None and link.reason is not None:
            lines += _trouble(f"link to {link.address} {link.state}", link.reason, link.hint)
        if status.slave_unavailable_because is not None and status.role == "SYNC_MASTER":
            hint = f"hastore slave --master {status.ha_address} --data DIR"
            if status.followers:
                hint = "it catches up: hastore status -w; a gap that stays: hastore doctor"
            lines += _trouble(
                "puts are answered SLAVE_NOT_AVAILABLE", status.slave_unavailable_because, hint
            )
        if status.dispatch_fault is not None:
            hint = "hastore log verify DIR; puts and replication go on, consumers see nothing new"
            lines += _trouble(
                f"consumers are {format_size(status.dispatch_behind_bytes)} behind",
                status.dispatch_fault,
                hint,
            )
        for slave in status.slaves:
            if slave.note is not None:
                lines += _trouble(f"slave {slave.address}", slave.note, COMPARE_HINT)
        newest = sorted(status.refused, key=lambda refusal: refusal.age_s)
        for refusal in newest[:REFUSALS_SHOWN_MAX]:
            lines += _trouble(_refused(refusal), refusal.reason, refusal.hint)
        if len(newest) > REFUSALS_SHOWN_MAX:
            lines.append(Text(f" and {len(newest) - REFUSALS_SHOWN_MAX} refused before (-o json)"))
        return lines


def _lag_time(lag_s: float | None, prefix: str) -> str:
    if lag_s is None:
        return NOTHING
    return prefix + format_duration(lag_s) if lag_s else "0 s"


def _role(status: NodeStatus) -> str:
    """What it is, and what its acknowledgements stand for, as far as that is known."""
    if status.master_link is not None:
        return status.role + (f", acks what is {status.ack_level}" if status.ack_level else "")
    if not status.acks_needed:
        return status.role
    acks = f"{status.acks_needed} ack{'s' * (status.acks_needed != 1)}"
    levels = {slave.ack_level for slave in status.slaves}
    (level,) = levels if len(levels) == 1 else (None,)
    return f"{status.role}, {acks}" + (f" ({level})" if level else "")


def _refused(refusal: RefusalRow) -> str:
    return f"refused {refusal.address} {format_duration(refusal.age_s)} ago"


def _trouble(what: str, why: str, hint: str | None) -> list[Text]:
    lines = [
        Text(f" {one_line(what)}", style="yellow"),
        Text.assemble("   ", ("why", "cyan"), f"   {one_line(why)}"),
    ]
    if hint:
        lines.append(Text.assemble("   ", ("next", "cyan"), f"  {one_line(hint)}"))
    return lines


def _rate(bytes_per_s: float) -> str:
    return f"{format_size(bytes_per_s)}/s" if bytes_per_s >= 1 else NOTHING

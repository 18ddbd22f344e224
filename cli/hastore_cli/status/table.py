"""The table of a NodeStatus for people: names, offsets, lag, refused peers and reasons.

::

    a  SYNC_MASTER, 1 ack (flushed)  ASYNC_FLUSH  up 12 min   serving · 1 of 1 slave caught up
    node  role    state      flushed    acknowledged  lag  lag time  msg/s       rate
    a     master  serving    1 839 002     1 841 231    -         -  1 204  1.2 MiB/s
    b     slave   streaming  1 841 231     1 841 231  0 B       0 s  1 204  1.2 MiB/s
     commit log 0 … 1 841 231 (1 file of 1GiB)  flushed 1 839 002  data D1  disk free 41.2 GiB

``sent`` and ``acknowledged`` of the master's own row are its end and ``push2_slave_max_offset``.
Only a slave knows what it has written and flushed: ``-`` unless it was asked too.  Pure.

A terminal that is too narrow gets whole columns only, the most needed ones::

    wide enough     node role address state sent written flushed acknowledged lag lag time …
    80 columns           role address state                      acknowledged lag lag time msg/s

Widths only grow and a column that was left out stays out, so that a table that is redrawn stands
still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from hastore.broker.observe.findings import Level, Limits, findings
from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.config import NodeConfig
from hastore.quantities import format_count, format_duration, format_exact_size, format_size
from hastore.store.disk_usage import disk_name
from hastore_cli.app.terminal import one_line, packed, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hastore.broker.observe.findings import HealthFinding
    from hastore.broker.observe.node_status import MasterLink, NodeStatus, RefusalRow, SlaveRow
    from hastore.broker.observe.sync_state_status import GroupNodeRow

    Row = tuple[str, ...]


REFUSALS_SHOWN_MAX: Final = 5
# Findings that the table does not show, and the least level to print.
_TROUBLES: Final = {
    "puts": Level.WARNING,
    "slaves": Level.CRITICAL,
    "link": Level.FAULT,
    "consumers": Level.CRITICAL,
    "disk": Level.WARNING,
    "next file": Level.WARNING,
    "stored": Level.WARNING,
    "start": Level.NOTICE,
    "replica group": Level.CRITICAL,
    "confirm offset": Level.WARNING,
    "cut": Level.CRITICAL,
    "access": Level.FAULT,
    "tls": Level.WARNING,
    "time": Level.WARNING,
}
_DEFAULT_NAME: Final = str(attrs.fields(NodeConfig).name.default)
_GAP: Final = 2
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
_LABELLED: Final = 9  # where the text after "why" and "next" begins
_NODE_INDENT: Final = "   "
_NODE_COLUMNS: Final = ("node", "role", "link", "acknowledged", "lag", "lag time")
_NODE_RANKS: Final = ("node", "role", "lag", "link", "acknowledged", "lag time")
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
    """Draws statuses at most ``width`` wide; ``grouped`` numbers are for people, not ``awk``.

    ``columns``: those of the last table, where it is redrawn.
    """

    def __init__(self, *, grouped: bool, width: int, columns: StatusColumns | None = None) -> None:
        self._width = width
        self._columns = StatusColumns() if columns is None else columns
        self._number: Callable[[int], str] = format_count if grouped else str

    def render(
        self,
        status: NodeStatus,
        *,
        written_bytes_per_s: float | None = None,
        extended: bool = False,
    ) -> Group:
        """Return everything about one node; ``extended``: with the latencies of its stages.

        Its texts are the node's, and any of them may hold line ends and control characters.
        """
        status = _escaped(status)
        return Group(
            *self._headline(status),
            *self._columns.lines(self._rows(status, written_bytes_per_s), self._width, _STYLES),
            *self._left_out(),
            *self._facts(status),
            *(stage_lines(status) if extended else ()),
            *self._troubles(status),
        )

    def _headline(self, status: NodeStatus) -> list[Text]:
        state = Text(status.state, style=_STYLES.get(status.state, ""))
        if status.master_link is None:
            current = status.current_slaves
            caught_up = sum(slave.state == "streaming" for slave in current)
            number = len(current)
            slaves = f" · {caught_up} of {number} slave{'s' * (number != 1)} caught up"
            state.append(
                slaves if number else " · no slave connected",
                style="" if number and caught_up == number else "yellow",
            )
        parts = [
            Text(node_title(status), style="bold"),
            Text(_role(status)),
            Text(status.flush_disk_type),
            Text(f"up {format_duration(status.uptime_s)}"),
            state,
        ]
        return self._packed(parts, "")

    def _packed(self, parts: Sequence[Text], indent: str) -> list[Text]:
        """Put parts side by side on as few lines as possible; none is broken."""
        lines = [Text(indent)]
        for part in parts:
            is_first = lines[-1].cell_len == len(indent)
            if not is_first and lines[-1].cell_len + _GAP + part.cell_len > self._width:
                lines.append(Text(indent + "  "))
            elif not is_first:
                lines[-1].append(" " * _GAP)
            lines[-1].append_text(part)
        return lines

    def _left_out(self) -> list[Text]:
        """Name the columns for which there is no room, and how to see them."""
        missing = self._columns.left_out
        if not missing:
            return []
        names = ", ".join(name.replace(" ", _NO_BREAK) for name in missing)
        *full, last = wrap(f"no room for {names}", self._width - len("   "))
        indents = [" ", *["   "] * len(full)]
        lines = [f"{indent}{line}" for indent, line in zip(indents, full, strict=False)]
        lines += packed(
            [indents[-1] + last, "all: hastore status … | less -S"], self._width, hang=len("   ")
        )
        return [Text(line.replace(_NO_BREAK, " "), style="dim") for line in lines]

    def _rows(self, status: NodeStatus, written_bytes_per_s: float | None) -> list[Row]:
        link = status.master_link
        if link is not None:
            return self._own_link(status, link)
        rate = status.written_bytes_per_s if written_bytes_per_s is None else written_bytes_per_s
        own = (
            node_title(status),
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
            self._per_s(status.messages_per_s),
            NOTHING if rate is None else _rate(rate),
            NOTHING,
        )
        return [
            own,
            *(self._slave(slave, "slave") for slave in status.slaves),
            *(self._slave(observer, "observer") for observer in status.observers),
        ]

    def _slave(self, slave: SlaveRow, role: str) -> Row:
        lag_time = _lag_time(slave.lag_s, "> " if slave.lag_s_is_least else "")
        return (
            slave.name or (NOTHING if slave.node_id is None else f"node {slave.node_id}"),
            role,
            slave.address,
            slave.state,
            self._offset(slave.sent_offset),
            self._offset(slave.written_offset),
            self._offset(slave.flushed_offset),
            self._offset(slave.ack_offset),
            NOTHING if slave.lag_bytes is None else format_size(slave.lag_bytes),
            lag_time,
            format_duration(slave.last_report_age_s),
            self._per_s(slave.messages_per_s),
            _rate(slave.rate_bytes_per_s),
            NOTHING if slave.eta_s is None else format_duration(slave.eta_s),
        )

    def _own_link(self, status: NodeStatus, link: MasterLink) -> list[Row]:
        """Return the rows of a slave and of its master, as far as the slave knows it."""
        behind = link.lag_bytes
        if behind is None and link.master_offset is not None:
            behind = max(0, link.master_offset - status.max_offset)
        about = "~" if link.lag_is_estimate else ""
        age = link.last_read_age_s
        own = (
            node_title(status),
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
            self._per_s(status.messages_per_s),
            _rate(link.rate_bytes_per_s),
            NOTHING,
        )
        master_end = self._offset(link.master_offset)
        master = (NOTHING, "master", link.address, link.state, master_end, *[NOTHING] * 9)
        return [own, master]

    def _offset(self, offset: int | None) -> str:
        return NOTHING if offset is None else self._number(offset)

    def _per_s(self, messages_per_s: float | None) -> str:
        """Format messages per second; below ten with a decimal, so that few differ from none."""
        if messages_per_s is None:
            return NOTHING
        if 0 < messages_per_s < 9.95:
            return f"{messages_per_s:.1f}"
        return self._number(round(messages_per_s))

    def _facts(self, status: NodeStatus) -> list[Text]:
        files = f"{status.mapped_files} file{'s' * (status.mapped_files != 1)}"
        extent = f"{self._number(status.min_offset)} … {self._number(status.max_offset)}"
        facts = [
            f"commit log {extent} ({files} of {format_exact_size(status.mapped_file_size)})",
            f"flushed {self._number(status.flushed_offset)}",
            f"data {status.data_dir}",
        ]
        if len(status.disks) > 1:
            facts += [
                f"{disk_name(row.directories)} free {format_size(row.free_bytes)}"
                for row in status.disks
            ]
        elif status.disk_free_bytes is not None:
            facts.append(f"disk free {format_size(status.disk_free_bytes)}")
        if status.dispatch_behind_bytes:
            facts.append(f"to dispatch {format_size(status.dispatch_behind_bytes)}")
        if status.ha_address is not None:
            facts.append(f"slaves at {status.ha_address}")
        if status.observer_address is not None:
            facts.append(f"observers at {status.observer_address}")
        lines = self._packed([Text(fact) for fact in facts], " ")
        if status.node_id is not None:
            lines += self._packed([Text(fact) for fact in self._group_facts(status)], " ")
            lines += self._group_lines(status)
        puts = []
        for name, count in status.put_counts.items():
            batches = status.put_batch_counts.get(name)
            in_batches = f" ({self._number(batches)} batches)" if batches else ""
            puts += [f"{name} {self._number(count)}{in_batches}"] if count else []
        if puts:
            waiting = status.waiting_for_slave
            parts = ["messages since the start:", *puts]
            if waiting:
                parts.append(f"{self._number(waiting)} wait for a slave")
            lines += self._packed([Text(part) for part in parts], " ")
        return lines

    def _group_facts(self, status: NodeStatus) -> list[str]:
        epoch = NOTHING if status.epoch is None else str(status.epoch)
        facts = [
            f"node {status.node_id} of group {status.replica_group!s}",
            f"epoch {epoch}",
        ]
        if status.epoch_start_offset is not None:
            facts[-1] += f" from {self._number(status.epoch_start_offset)}"
        group, link = status.sync_state, status.master_link
        if group is not None:
            facts[-1] += f", master for {format_duration(group.epoch_age_s)}"
        if (status.seen_epoch or 0) > (status.epoch or 0):
            facts.append(f"has heard of epoch {status.seen_epoch}")
        if link is not None and link.masters_epoch not in {None, status.epoch}:
            facts.append(f"master's epoch {link.masters_epoch}")
        confirmed = f"confirmed {self._offset(status.confirm_offset)}"
        if group is not None and group.confirm_lag_bytes:
            lag = _lag_time(group.confirm_lag_s, "> " if group.confirm_lag_s_is_least else "")
            confirmed += f", {format_size(group.confirm_lag_bytes)} and {lag} behind"
        facts.append(confirmed)
        coordinator = status.coordinator
        if coordinator is not None:
            facts.append(f"coordinator: {coordinator.doing}")
            if coordinator.lease_left_s is not None:
                facts.append(f"may decide for {format_duration(coordinator.lease_left_s)}")
        cut = status.last_cut
        if cut is not None:
            at, size = self._number(cut["offset"]), format_size(cut["end"] - cut["offset"])
            facts.append(f"cut at {at}: {size} in trimmed/")
            facts += [f"{topic} {self._number(count)}" for topic, count in cut["messages"].items()]
        return facts

    def _group_lines(self, status: NodeStatus) -> list[Text]:
        """Return the SyncStateSet and the nodes of a replica group, as its master knows them."""
        group = status.sync_state
        if group is None:
            return []
        ids = group.configured_ids
        facts = [f"SyncStateSet {_ids(group.members)}" + (f" of {_ids(ids)}" if ids else "")]
        facts += [
            f"in_sync_replicas {group.in_sync_replicas}",
            f"min_in_sync_replicas {group.min_in_sync_replicas} ({group.mode})",
            group.copies_text,
        ]
        lines = self._packed([Text(fact) for fact in facts], " ")
        if group.may_lose_because is not None:
            lines += self._wrapped(group.may_lose_because, "   ")
        if group.proposal is not None:
            age = format_duration(group.proposal.age_s)
            lines += self._wrapped(f"proposed {age} ago: {group.proposal.why}", "   ")
        others = [node for node in group.nodes if node.role != "master"]
        if others:
            rows = [_NODE_COLUMNS, *(self._node(node) for node in others)]
            widths = _node_widths(rows, self._width - len(_NODE_INDENT))
            lines.append(_node_line(rows[0], widths, "dim"))
            for node, row in zip(others, rows[1:], strict=True):
                lines.append(_node_line(row, widths, "" if node.is_member else "yellow"))
                if node.why_not is not None:
                    lines += self._wrapped(node.why_not, " " * 6)
        return lines

    def _node(self, node: GroupNodeRow) -> Row:
        link = node.address or "never connected"
        if not node.is_connected and node.since_s is not None:
            link = f"none for {format_duration(node.since_s)}"
        return (
            str(node.node_id),
            node.role,
            link,
            self._offset(node.ack_offset),
            NOTHING if node.lag_bytes is None else format_size(node.lag_bytes),
            _lag_time(node.lag_s, "> " if node.lag_s_is_least else ""),
        )

    def _wrapped(self, text: str, indent: str) -> list[Text]:
        return [Text(indent + line) for line in wrap(text, self._width - len(indent))]

    def _troubles(self, status: NodeStatus) -> list[Text]:
        """Return what is wrong, each with its cause and the next step."""
        lines: list[Text] = []
        for found in troubles(status):
            lines += self._trouble(found.what, found.why, found.hint)
        newest = sorted(status.refused, key=lambda refusal: refusal.age_s)
        for refusal in newest[:REFUSALS_SHOWN_MAX]:
            lines += self._trouble(_refused(refusal), refusal.reason, refusal.hint)
        if len(newest) > REFUSALS_SHOWN_MAX:
            lines.append(Text(f" and {len(newest) - REFUSALS_SHOWN_MAX} refused before (-o json)"))
        return lines

    def _trouble(self, what: str, why: str | None, hint: str | None) -> list[Text]:
        lines = [Text(f" {line}", style="yellow") for line in wrap(what, self._width - 1)]
        lines += self._labelled("why", why) if why else []
        return lines + (self._labelled("next", hint) if hint else [])

    def _labelled(self, label: str, text: str) -> list[Text]:
        first, *more = wrap(text, self._width - _LABELLED)
        head = Text.assemble("   ", (label, "cyan"), " " * (_LABELLED - 3 - len(label)), first)
        return [head, *(Text(" " * _LABELLED + line) for line in more)]


def _escaped(value: Any) -> Any:
    """Return a status with each of its texts on one line."""
    match value:
        case str():
            return one_line(value)
        case tuple() | list():
            return type(value)(map(_escaped, value))
        case dict():
            return {_escaped(name): _escaped(one) for name, one in value.items()}
        case _ if attrs.has(type(value)):
            names = [field.name for field in attrs.fields(type(value))]
            return attrs.evolve(value, **{name: _escaped(getattr(value, name)) for name in names})
        case _:
            return value


def _lag_time(lag_s: float | None, prefix: str) -> str:
    if lag_s is None:
        return NOTHING
    return prefix + format_duration(lag_s) if lag_s else "0 s"


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


def _node_widths(rows: Sequence[Row], room: int) -> dict[str, int]:
    """Return the widths of those columns that fit."""
    widths: dict[str, int] = {}
    left = room + _GAP
    for name in _NODE_RANKS:
        at = _NODE_COLUMNS.index(name)
        width = max(cell_len(row[at]) for row in rows)
        if width + _GAP <= left:
            left -= width + _GAP
            widths[name] = width
    return widths


def _node_line(cells: Sequence[str], widths: dict[str, int], style: str) -> Text:
    padded = []
    for name, cell in zip(_NODE_COLUMNS, cells, strict=True):
        if name in widths:
            space = " " * (widths[name] - cell_len(cell))
            padded.append(space + cell if name in _RIGHT else cell + space)
    line = Text(_NODE_INDENT + (" " * _GAP).join(padded), style=style)
    line.rstrip()
    return line


def _role(status: NodeStatus) -> str:
    """Return the role, and the meaning of its acknowledgements if known."""
    if status.master_link is not None:
        return status.role + (f", acks what is {status.ack_level}" if status.ack_level else "")
    if not status.acks_needed:
        return status.role
    acks = f"{status.acks_needed} ack{'s' * (status.acks_needed != 1)}"
    levels = {slave.ack_level for slave in status.slaves}
    (level,) = levels if len(levels) == 1 else (None,)
    return f"{status.role}, {acks}" + (f" ({level})" if level else "")


def node_title(status: NodeStatus) -> str:
    """Return a node's name; its id or address where that is the default, which all may have."""
    if status.name != _DEFAULT_NAME:
        return status.name
    if status.node_id is not None:
        return f"node {status.node_id}"
    return status.address or status.name


def _refused(refusal: RefusalRow) -> str:
    return f"refused {refusal.address} {format_duration(refusal.age_s)} ago"


def _rate(bytes_per_s: float) -> str:
    return f"{format_size(bytes_per_s)}/s" if bytes_per_s >= 1 else NOTHING


# -- the latencies of stages ---------------------------------------------------------------------


def stage_lines(status: NodeStatus) -> Iterator[Text]:
    """Yield a line for each stage with latencies."""
    if not status.stages:
        return
    yield Text(
        f" {'stage':<13}{'count':>12}{'p50':>11}{'p99':>11}{'max':>11}    since the start",
        style="dim",
    )
    for stage, data in status.stages.items():
        histogram = LatencyHistogram.from_dict(data)
        cells = [format_count(histogram.count)]
        for share in (0.5, 0.99):
            found = histogram.quantile_s(share)
            cells.append("-" if found is None else format_duration(found))
        cells.append(format_duration(histogram.max_s) if histogram.count else "-")
        yield Text(f" {stage:<13}{cells[0]:>12}{cells[1]:>11}{cells[2]:>11}{cells[3]:>11}")


# -- several nodes as one picture ----------------------------------------------------------------


def merge(statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Return the statuses, each master's rows completed from its slaves' statuses."""
    slaves = {
        status.master_link.local_address: status
        for status in statuses
        if status.master_link is not None and status.master_link.local_address is not None
    }
    return [
        attrs.evolve(
            status, slaves=tuple(_known(row, slaves.get(row.address)) for row in status.slaves)
        )
        for status in statuses
    ]


def _known(row: SlaveRow, slave: NodeStatus | None) -> SlaveRow:
    if slave is None:
        return row
    return attrs.evolve(
        row,
        name=node_title(slave),
        written_offset=slave.max_offset,
        flushed_offset=slave.flushed_offset,
        ack_level=slave.ack_level,
        messages_per_s=slave.messages_per_s,
    )


def worth_a_table(merged: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Return the statuses without healthy slaves that a master's table shows."""
    rowed = {row.address for status in merged for row in status.slaves if row.name is not None}
    return [status for status in merged if not _is_told(status, rowed)]


def _is_told(status: NodeStatus, rowed: set[str]) -> bool:
    link = status.master_link
    return link is not None and link.local_address in rowed and not any(troubles(status))


def troubles(status: NodeStatus) -> Iterator[HealthFinding]:
    """Yield what is wrong with a node, as far as its table has no other place for it."""
    for found in findings(status, Limits.of(status)):
        if found.subject in _TROUBLES and found.level >= _TROUBLES[found.subject]:
            yield found


# -- the columns that fit ------------------------------------------------------------------------


COLUMNS: Final = (
    "node", "role", "address", "state", "sent", "written", "flushed", "acknowledged", "lag",
    "lag time", "age", "msg/s", "rate", "eta",
)  # fmt: skip
NOTHING: Final = "-"
# The most needed first.  A slave with a name was asked too, so that its columns are known.  If two
# nodes share a name, such as the default one, only the address identifies them.
_RANKS: Final = (
    "state", "address", "role", "lag", "acknowledged", "msg/s", "lag time", "sent", "rate", "node",
    "age", "flushed", "written", "eta",
)  # fmt: skip
_RANKS_WITH_NAMES: Final = (
    "state", "node", "role", "lag", "acknowledged", "msg/s", "lag time", "flushed", "written",
    "address", "rate", "sent", "age", "eta",
)  # fmt: skip
_RANKS_WITH_ONE_NAME: Final = tuple(
    {"node": "address", "address": "node"}.get(name, name) for name in _RANKS_WITH_NAMES
)
# The usual widths of values that change each time.
_USUAL_WIDTHS: Final = {
    "state": len("catching-up"),
    "lag": len("1023.9 MiB"),
    "lag time": len("999.9 ms"),
    "age": len("999.9 ms"),
    "msg/s": len("99 999"),
    "rate": len("1023.9 MiB/s"),
    "eta": len("999.9 s"),
}
_RIGHT: Final = frozenset(
    {"sent", "written", "flushed", "acknowledged", "lag", "lag time", "msg/s", "rate"}
)


@final
class StatusColumns:
    """The columns of one table; reuse it to draw the next table with the same ones."""

    def __init__(self) -> None:
        self._room: int | None = None
        self._names: tuple[str, ...] = ()
        self._widths = {name: max(len(name), _USUAL_WIDTHS.get(name, 0)) for name in COLUMNS}

    @property
    def left_out(self) -> list[str]:
        """The columns for which there was no room."""
        return [name for name in COLUMNS if name not in self._names]

    def lines(self, rows: Sequence[Row], room: int, styles: dict[str, str]) -> Iterator[Text]:
        """Yield the head and the rows, at most ``room`` wide; ``styles`` are those of states."""
        self._fit(rows, room)
        yield self._line(COLUMNS, "dim")
        for row in rows:
            yield self._line(row, "", styles.get(row[COLUMNS.index("state")], ""))

    def _fit(self, rows: Sequence[Row], room: int) -> None:
        for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
            self._widths[name] = max(self._widths[name], *map(cell_len, column))
        if room != self._room:
            self._names = _ranks(rows)
            self._room = room
        chosen: list[str] = []
        left = room + _GAP
        for name in self._names:
            if self._widths[name] + _GAP <= left:
                left -= self._widths[name] + _GAP
                chosen.append(name)
        self._names = tuple(chosen)

    def _line(self, cells: Sequence[str], style: str, state_style: str = "") -> Text:
        line = Text(style=style)
        for name, cell in zip(COLUMNS, cells, strict=True):
            if name in self._names:
                space = " " * (self._widths[name] - cell_len(cell))
                line.append(space if name in _RIGHT else "")
                line.append(cell, style=state_style if name == "state" else "")
                line.append(("" if name in _RIGHT else space) + " " * _GAP)
        line.rstrip()
        return line


def _ranks(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns, the most needed first; a slave that was asked has a name."""
    names = [row[0] for row in rows if row[0] != NOTHING]
    if all(row[0] == NOTHING for row in rows[1:]):
        return _RANKS
    return _RANKS_WITH_NAMES if len(set(names)) == len(names) else _RANKS_WITH_ONE_NAME

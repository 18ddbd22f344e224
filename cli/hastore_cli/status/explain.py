"""``hastore explain``: why a master's last puts were answered as they were.

::

    n1  SYNC_MASTER  127.0.0.1:10911   PUT_OK 12 345  SLAVE_NOT_AVAILABLE 1 204
     08:14:02.118 … 08:14:05.207  SLAVE_NOT_AVAILABLE × 1 204  orders/2, log up to 1 841 231
       why   no slave connected since 08:14:02 (last: 127.0.0.1:50212, closed by the slave)
       next  hastore slave --master 127.0.0.1:10912 --data DIR

In a replica group a put needs nodes, and ``why`` names those that had it, and the others::

    it needed nodes 1, 2, 3, and the master and node 2 had it: node 3 not connected since 08:14:02

``hastore.explain/1`` in, lines out.  Facts that the master did not know are left out.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from hastore.quantities import format_count, format_duration, format_size
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import one_line
from hastore_cli.node.options import ask_node, node_asked
from hastore_cli.settings.param_types import WholeNumber, complete_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.errors import RequestFailedError
    from hastore_cli.node.client import NodeClient

ACKNOWLEDGED_SHOWN_MAX: Final = 5
_MAYBE_SILENT: Final = 0.9  # share of a put's timeout without a report: the slave may be silent
_EXIT_UNREACHABLE: Final = 3
_TIMED_OUT: Final = "acknowledged it within"  # in the reason of a put whose time was over


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore explain",
        "hastore explain 127.0.0.1:10911 --last 50",
        "hastore explain D1 D2 D3       # a master, and slaves to name",
        "hastore explain D1 -o json | jq -r '.weak[] | [.status, .count] | @tsv'",
    ),
    epilog="Exit code: 0 when it was shown, 1 from a slave (its master decides), 3 when a named"
    " node does not answer.",
)
@click.argument("addrs", nargs=-1, metavar="[ADDR]...", shell_complete=complete_directory)
@click.option(
    "-n",
    "--last",
    type=WholeNumber(1, 1000),
    default=20,
    show_default=True,
    help="Number of decisions; consecutive ones with one cause count as one.",
)
@output_option()
def explain(addrs: tuple[str, ...], last: int, output: str) -> int:
    """Explain why puts were not PUT_OK: which slave was missing, behind or silent, and since when.

    ADDR is the HOST:PORT of a master's client port, or its data directory. [default: the
    node of this directory or configuration, else 127.0.0.1:10911] [env: HASTORE_ADDR] Slaves
    named after it are shown by name, with the meaning of their acknowledgements: received or
    flushed.
    """
    from hastore.broker.observe.explanation import Explanation
    from hastore.errors import AccessDeniedError, RequestFailedError
    from hastore.wire.json_shape import read_shape
    from hastore_cli.app.terminal import folded, tell

    async def question(node: NodeClient) -> dict[str, Any]:
        try:
            answer = await node.admin.explain(last)
        except AccessDeniedError:
            raise
        except RequestFailedError as error:
            raise await _refusal_of(node, error) from error
        return dict(read_shape(Explanation, answer, "the explanation"))

    asked, *slaves = addrs or (node_asked(),)
    explanation = ask_node(asked, question)
    explanation["known_slaves"], is_whole = _known_slaves(slaves)
    if output == "json":
        echo_json(explanation, indent=2)
    else:
        for line in explanation_lines(explanation):
            head, text = split_head(line)
            tell(line if head.strip() == "next" else folded(head, text, sys.stdout, hang=2))
    return 0 if is_whole else _EXIT_UNREACHABLE


async def _refusal_of(node: NodeClient, error: RequestFailedError) -> RequestFailedError:
    """Return an error that names a slave's master; for other nodes ``error`` itself."""
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.errors import HastoreError, RequestFailedError

    try:
        answer = (await node.admin.ha_status()).get("hastore")
        status = NodeStatus.from_dict(answer) if isinstance(answer, dict) else None
    except HastoreError:
        return error
    if status is None or status.master_link is None:
        return error
    msg = f"{node.address} ({one_line(status.name)}) is a slave: only its master can explain"
    hint = f"hastore explain MASTER: the node whose HA port is {status.master_link.address}"
    return RequestFailedError(msg, code=error.code, hint=hint)


def _known_slaves(addrs: list[str]) -> tuple[dict[str, dict[str, str | None]], bool]:
    """Return the slaves' names and ack levels, by the address that their master knows.

    And whether all slaves answered; prints the errors of the others.
    """
    if not addrs:
        return {}, True
    import trio

    from hastore_cli.app.terminal import say_error
    from hastore_cli.status.watch import look

    statuses, errors = trio.run(look, addrs)
    for error in errors:
        say_error(str(error), error.hint)
    known = {
        status.master_link.local_address: {"name": status.name, "ack_level": status.ack_level}
        for status in statuses
        if status.master_link is not None and status.master_link.local_address is not None
    }
    return known, not errors


# -- what it prints ------------------------------------------------------------------------------


def split_head(line: str) -> tuple[str, str]:
    """Split a line into its indentation with label (why, next), and its text."""
    match = re.match(r" *(?:(?:why|next) +)?", line)
    assert match is not None
    return match[0], line[match.end() :]


def clock_time(ms: int, now_ms: int | None, *, with_ms: bool = True) -> str:
    """Return a local time, ``08:14:02.118``; with its date if that is not today's."""
    try:
        local = _local(ms)
        is_today = now_ms is None or local.date() == _local(now_ms).date()
    except (OverflowError, ValueError, OSError):  # a time that the calendar lacks
        return f"{ms} ms"
    text = f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M:%S}"
    return f"{text}.{local.microsecond // 1000:03d}" if with_ms else text


def _local(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, tz=dt.UTC).astimezone()


def explanation_lines(explanation: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a master's explanation, the newest decision last."""
    counts = [
        f"{status} {format_count(count)}"
        for status, count in explanation["put_counts"].items()
        if count
    ]
    head = (
        f"{one_line(explanation['name'])}  {explanation['role']}  {explanation['address'] or '-'}"
    )
    yield f"{head}   {'  '.join(counts) or 'no puts since the start'}"
    weak = explanation["weak"]
    if not weak:
        yield " every put since the start was PUT_OK, or failed by its producer's mistake"
    for row in weak:
        yield " " + _headline(row, explanation.get("now_ms"))
        why, next_step = cause_of(row, explanation)
        yield f"   why   {one_line(why)}"
        if next_step:
            yield f"   next  {one_line(next_step)}"
    acknowledged = explanation["acknowledged"][-ACKNOWLEDGED_SHOWN_MAX:]
    if acknowledged:
        yield " acknowledged by slaves, a sample:"
    for row in acknowledged:
        yield "   " + _acknowledged(row, explanation)
    if not acknowledged and explanation["role"] == "ASYNC_MASTER":
        yield " an ASYNC_MASTER waits for no slave: its puts are PUT_OK once they are stored here"


def _headline(row: dict[str, Any], now_ms: int | None) -> str:
    when = clock_time(row["first_ms"], now_ms)
    if row["count"] > 1:
        when += f" … {clock_time(row['last_ms'], now_ms)}"
    times = f" × {format_count(row['count'])}" if row["count"] > 1 else ""
    where = f"  {one_line(row['topic'])}/{row['queue_id']}"
    if row["last_offset"] is not None:
        where += f", log up to {format_count(row['last_offset'])}"
    return f"{when}  {row['status']}{times}{where}"


def _acknowledged(row: dict[str, Any], explanation: dict[str, Any]) -> str:
    count = row["count"]
    what = f"{one_line(row['topic'])}/{row['queue_id']}"
    if count > 1:
        what = f"{format_count(count)} puts, the oldest {what}"
    who = "a change of the SyncStateSet"
    if row["slave"] is not None:
        who, _ = _who(row["slave"], explanation)
    when = clock_time(row["last_ms"], explanation.get("now_ms"))
    line = f"{when}  {row['status']}  {what}, by {who}"
    line += f" after {format_duration(row['waited_max_s'] or 0.0)}"
    if count <= 1:
        return line
    return f"{line} (the newest {format_duration(row['waited_min_s'] or 0.0)})"


def cause_of(row: dict[str, Any], explanation: dict[str, Any]) -> tuple[str, str | None]:
    """Return the cause of a put's status, and the next step."""
    address = explanation["address"] or "ADDR"
    reason = row["reason"] or "no reason kept"
    match row["status"]:
        case "IN_SYNC_REPLICAS_NOT_ENOUGH":
            return _too_few_members(row, address)
        case "SLAVE_NOT_AVAILABLE" | "FLUSH_SLAVE_TIMEOUT" if row.get("acks") is not None:
            return _missed_by_nodes(row, explanation, address)
        case "SLAVE_NOT_AVAILABLE":
            return _not_available(row, explanation)
        case "FLUSH_SLAVE_TIMEOUT":
            return _not_acknowledged(row, explanation)
        case "FLUSH_DISK_TIMEOUT":
            return reason, f"hastore status {address} --extended says how long flushes take"
        case "SERVICE_NOT_AVAILABLE":
            return reason, f"hastore doctor {address}"
        case _:
            return reason, None


def _too_few_members(row: dict[str, Any], address: str) -> tuple[str, str | None]:
    reasons = [row["reason"] or "no reason kept"]
    if row.get("acks") is not None:
        reasons += [
            f"node {node['node_id']} is not in the set: {node['why_not']}"
            for node in row["acks"]["not_needed"]
            if node["why_not"] is not None
        ]
    return "; ".join(reasons), f"bring back a node that is not in the set: hastore doctor {address}"


def _missed_by_nodes(
    row: dict[str, Any], explanation: dict[str, Any], address: str
) -> tuple[str, str | None]:
    """Return which nodes of a replica group a put needed, and why some did not have it."""
    acks, reason = row["acks"], row["reason"] or "no reason kept"
    wanted = acks["in_sync_replicas"]
    needed = f"nodes {_ids(acks['needed'])}" if wanted == "all" else f"{wanted} nodes"
    had = f"the master and node{'s' * (len(acks['got']) > 1)} {_ids(acks['got'])}"
    why = f"it needed {needed}, and {had if acks['got'] else 'the master alone'} had it"
    missed = [_missed(node, row["first_offset"] or 0, explanation) for node in acks["missed"]]
    if missed:
        why += f": {'; '.join(missed)}"
    elif len(acks["members"]) < acks["min_in_sync_replicas"]:
        least = acks["min_in_sync_replicas"]
        why += f": the set has fewer members than min_in_sync_replicas = {least}"
    if row["status"] == "SLAVE_NOT_AVAILABLE":
        return (
            f"{why} ({reason})",
            f"start that node again; what else is wrong: hastore doctor {address}",
        )
    if _TIMED_OUT not in reason:
        why = f"{reason}; {why}"
    return why, f"hastore status {address} -w: does each node follow? hastore doctor NODE, if not"


def _missed(node: dict[str, Any], end: int, explanation: dict[str, Any]) -> str:
    """Return why a node did not have a put that ends at ``end``."""
    who = f"node {node['node_id']}"
    if node["address"] is None:
        when = "in this epoch"
        if node["since_ms"] is not None:
            now_ms = explanation.get("now_ms")
            when = f"since {clock_time(node['since_ms'], now_ms, with_ms=False)}"
        return f"{who} not connected {when}"
    name, level = _who(node["address"], explanation)
    who += f" ({name})" if level is None else f", {name},"
    ack, sent = node["ack_offset"], node["sent_offset"]
    if ack is None:
        return f"{who} had acknowledged nothing on its link"
    if sent is not None and sent < end:
        return f"{who} had not been sent it, {format_size(end - sent)} were still to send"
    done = {"flushed": "flushed", "received": "stored"}.get(level or "", "acknowledged")
    silent = format_duration(node["last_report_age_s"] or 0.0)
    return (
        f"{who} was sent it and had not {done} it, {format_size(end - ack)} missing, last report"
        f" {silent} before"
    )


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids))


def _not_available(row: dict[str, Any], explanation: dict[str, Any]) -> tuple[str, str | None]:
    slaves, departed = row.get("slaves") or [], row.get("departed")
    if slaves and row["first_offset"] is not None:
        nearest = slaves[0]
        behind = format_size(row["first_offset"] - nearest["ack_offset"])
        limit = format_size(row["slave_lag_max"] or 0)
        who, _ = _who(nearest["address"], explanation)
        why = f"nearest slave {who} {behind} behind > {limit}"
        return why, "watch it catch up: hastore status -w; if it does not: hastore doctor"
    start_one = f"hastore slave --master {explanation['ha_address']} --data DIR"
    if departed is None:
        return "no slave connected since the master's start", start_one
    last = f"last: {departed['address']}, {departed['reason']}"
    when = clock_time(departed["at_ms"], explanation.get("now_ms"), with_ms=False)
    return f"no slave connected since {when} ({last})", start_one


def _not_acknowledged(row: dict[str, Any], explanation: dict[str, Any]) -> tuple[str, str | None]:
    slaves = row.get("slaves") or []
    end, timeout_ms = row["first_offset"], explanation["slave_timeout_ms"]
    if not slaves or end is None:
        departed = row.get("departed")
        if departed is None:
            return row["reason"] or "no reason kept", "hastore doctor"
        last = f"{departed['address']}, {departed['reason']}"
        return f"the slave had left meanwhile ({last})", "hastore doctor"
    slave = slaves[0]
    who, level = _who(slave["address"], explanation)
    silent_s = slave["last_report_age_s"]
    if slave["sent_offset"] < end:
        left = format_size(end - slave["sent_offset"])
        why = f"{who} had not been sent it after {timeout_ms} ms: {left} were still to send"
        return why, "hastore status -w shows the rate of each slave"
    missing = format_size(max(end - slave["ack_offset"], 0))
    # A slave that acknowledges what it has flushed is silent while its disk is slow.
    if level != "flushed" and silent_s * 1000 >= timeout_ms * _MAYBE_SILENT:
        why = f"{who} was sent it, and reported nothing for {format_duration(silent_s)}"
        return why, "check whether it is stopped, cut off, or waits for its disk: hastore doctor"
    done = {"flushed": "flushed", "received": "stored"}.get(level or "", "acknowledged")
    why = (
        f"{who} was sent it but had not {done} it after {timeout_ms} ms: {missing} missing,"
        f" last report {format_duration(silent_s)} before"
    )
    return (
        why,
        "a slave with SYNC_FLUSH acknowledges what is on its disk: hastore status SLAVE --extended",
    )


def _who(address: str, explanation: dict[str, Any]) -> tuple[str, str | None]:
    """Return a slave's name and ack level if it was asked; else its address and None."""
    known = explanation.get("known_slaves", {}).get(address)
    if known is None:
        return address, None
    return f"{one_line(known['name'])} ({address})", known["ack_level"]

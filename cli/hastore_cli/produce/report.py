"""Prints for ``hastore produce``: a line per message, or counts; reasons, next steps; JSON.

::

    PUT_OK  orders/2 @ 1841  id 7F00000100002A9F000000004001F3C8  4.1 ms
    SLAVE_NOT_AVAILABLE  orders/2 @ 1842  id 7F00…  stored on the master only  0.2 ms
      why   no slave is connected; …
      next  hastore slave --master 127.0.0.1:10912 --data DIR

Result lines and tables go to stdout, ``why`` and ``next`` to stderr.  JSON: ``hastore.produce/1``.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.errors import HastoreError
from hastore.quantities import format_address, format_count, format_duration, format_size
from hastore.status import PutMessageStatus
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import (
    folded,
    make_console,
    one_line,
    packed,
    say,
    say_next,
    style,
    tell,
)
from hastore_cli.produce.tally import NO_ANSWER, PUT_OK, label_of, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hastore.client.send_result import PendingSend, SendResult
    from hastore_cli.produce.run import ProduceOrder, ProduceOutcome

SCHEMA: Final = "hastore.produce/1"
_REFRESH_S: Final = 0.2
_STORED_WHERE: Final = {
    PutMessageStatus.SLAVE_NOT_AVAILABLE.value: "stored on the master only",
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT.value: "stored, no slave has confirmed it yet",
    PutMessageStatus.FLUSH_DISK_TIMEOUT.value: "stored, not yet forced to the disk",
}
_COLOURS: Final = {PUT_OK: "green"} | dict.fromkeys(_STORED_WHERE, "yellow")


@final
@attrs.define(eq=False)
class ProduceReport:
    """Prints the outcome of one run; ``as_json`` keeps everything for one document at the end."""

    order: ProduceOrder
    as_json: bool
    ha_address: str | None = None  # for the next step; filled in when it is needed
    _messages: list[dict[str, Any]] = attrs.field(factory=list, init=False)
    _said: set[tuple[str, str | None]] = attrs.field(factory=set, init=False)

    # -- a line a message ------------------------------------------------------------------------

    def listed(self, pending: PendingSend, outcome: ProduceOutcome) -> None:
        """Print one message with an outcome."""
        label = label_of(pending)
        latency_s = outcome.tally.take_latency(pending)
        result = _result_of(pending)
        if self.as_json:
            self._messages.append(_message_json(label, pending, result, latency_s))
            return
        head = style(label, fg=_COLOURS.get(label, "red"), bold=True)
        parts = []
        if result is not None and result.queue_offset is not None:
            parts.append(f"{result.topic}/{result.queue_id} @ {result.queue_offset}")
            parts.append(f"id {result.message_id}")
        else:
            parts.append(f"{pending.topic}/{pending.queue_id}")
        if label in _STORED_WHERE:
            parts.append(_STORED_WHERE[label])
        elif label == NO_ANSWER:
            parts.append("outcome unknown: it may be stored")
        elif label != PUT_OK:
            parts.append("not stored")
        if latency_s is not None:
            parts.append(format_duration(latency_s))
        tell(folded(f"{head}  ", "  ".join(parts), sys.stdout))
        if label != PUT_OK:
            self._say_why_once(label, reason_of(pending))

    def _say_why_once(self, label: str, reason: str | None) -> None:
        """Print each reason once; next steps are printed at the end."""
        if (label, reason) not in self._said:
            self._said.add((label, reason))
            _say_why(reason)

    # -- at the end ------------------------------------------------------------------------------

    def finish(self, outcome: ProduceOutcome, *, exit_code: int) -> None:
        """Print the counts or the JSON document, and the next steps."""
        tally = outcome.tally
        if self.as_json:
            document = self._document(outcome, exit_code)
            echo_json(document)
        elif not tally.sent:
            if outcome.signal_code is None and outcome.error is None:
                say("nothing was sent: the input is empty")
        elif not self._was_listed(outcome):
            self._print_counts(outcome)
        for label, reason in tally.reasons.items():
            if not self._was_listed(outcome) or self.as_json:
                say(f"  {label}")
                _say_why(reason)
            say_next(self._next_step(label, reason, outcome.address))

    def _was_listed(self, outcome: ProduceOutcome) -> bool:
        return outcome.lists and (self.order.list_all or outcome.tally.sent <= 20)

    def _print_counts(self, outcome: ProduceOutcome) -> None:
        tally = outcome.tally
        console = make_console()
        number = format_count if console.is_terminal else str
        width = max(len(label) for label in [*tally.counts, "total"])
        count_width = len(number(tally.sent))
        for label, count in tally.ordered_counts().items():
            share = f"{100 * count / tally.sent:5.1f} %"
            style = _COLOURS.get(label, "red")
            console.print(f"{label:<{width}}", style=style, end="")
            console.print(f"  {number(count):>{count_width}}  {share}")
        facts = [f"{'total':<{width}}  {number(tally.sent)}"]
        if outcome.seconds > 0:
            facts.append(f"{number(round(tally.done / outcome.seconds))} msg/s")
            facts.append(f"{format_size(tally.body_bytes / outcome.seconds)}/s")
        facts.append(f"in {format_duration(outcome.seconds)}")
        for name, share_of in (("p50", 0.5), ("p99", 0.99)):
            latency = tally.latencies.quantile(share_of)
            if latency is not None:
                facts.append(f"{name} {format_duration(latency)}")
        for line in packed(facts, console.width, hang=width + 2):
            console.print(line)

    def _document(self, outcome: ProduceOutcome, exit_code: int) -> dict[str, Any]:
        tally = outcome.tally
        seconds = outcome.seconds
        latencies = {f"p{share}": tally.latencies.quantile(share / 100) for share in (50, 99)}
        return {
            "schema": SCHEMA,
            "topic": self.order.topic,
            "address": format_address(outcome.address or self.order.addresses[0]),
            "sent": tally.sent,
            "body_bytes": tally.body_bytes,
            "counts": {
                _json_label(label): count for label, count in tally.ordered_counts().items()
            },
            "reasons": tally.reasons,
            "took_s": round(seconds, 6),
            "seconds": round(seconds, 6),  # the name of 0.1.0, for one more release
            "messages_per_s": round(tally.done / seconds, 1) if seconds else None,
            "latency_s": {
                name: None if latency is None else round(latency, 6)
                for name, latency in latencies.items()
            },
            "latency_ms": {  # likewise
                name: None if latency is None else round(latency * 1e3, 3)
                for name, latency in latencies.items()
            },
            "failovers": [
                {
                    "master": failover.name,
                    "address": format_address(failover.address),
                    "epoch": failover.epoch,
                    "sent_again": failover.sent_again,
                    "reason": failover.reason,
                    "took_s": round(failover.seconds, 6),
                    "seconds": round(failover.seconds, 6),  # likewise
                }
                for failover in outcome.failovers
            ],
            "messages": self._messages,
            "error": None if outcome.error is None else str(outcome.error),
            "exit_code": exit_code,
        }

    def _next_step_without_a_slave(self, address: str, reason: str) -> str:
        if "behind" in reason:
            return f"wait for it: hastore status {address} -w"
        if reason.startswith("node"):  # nodes of a replica group
            return f"start the missing nodes; which nodes have a put: hastore explain {address}"
        ha_address = self.ha_address or "HOST:HA_PORT"
        return f"start one: hastore slave --master {ha_address} --data DIR"

    def _next_step(
        self, label: str, reason: str | None, sent_to: tuple[str, int] | None = None
    ) -> str:
        address = format_address(sent_to or self.order.addresses[0])
        match label:
            case "SLAVE_NOT_AVAILABLE":
                return self._next_step_without_a_slave(address, reason or "")
            case "FLUSH_SLAVE_TIMEOUT" | "IN_SYNC_REPLICAS_NOT_ENOUGH":
                which = "slow" if label == "FLUSH_SLAVE_TIMEOUT" else "missing"
                return f"find the {which} slave: hastore status {address}"
            case "FLUSH_DISK_TIMEOUT":
                return f"watch the flushed offset: hastore status {address} -w"
            case "MESSAGE_ILLEGAL" | "PROPERTIES_SIZE_EXCEEDED":
                return _next_step_of_illegal(label, reason or "")
            case "OS_PAGE_CACHE_BUSY" | "CREATE_MAPPED_FILE_FAILED":
                return f"free disk space or lower --rate, then send again; hastore status {address}"
            case "REFUSED" if (reason or "").startswith("access denied"):
                return "hastore acl explain says what a key may do"
            case "SERVICE_NOT_AVAILABLE" | "REFUSED":
                return f"check its role and whether it is stopping: hastore status {address}"
            case _:
                return f"before sending again, check what it stored: hastore status {address}"


def _next_step_of_illegal(label: str, reason: str) -> str:
    """Name a setting only for the size of messages: a log keeps the size of its files."""
    if label == "PROPERTIES_SIZE_EXCEEDED":
        return "shorten the properties: a record cannot hold more"
    if "max_message_size" in reason:
        return (
            "send less in one message; message_max and file_size in the master's [store] limit it"
        )
    if "mapped file" in reason:
        return "send less in one message: it must fit one file of the master's log"
    return "correct what the reason names: the same message would be refused again"


def _result_of(pending: PendingSend) -> SendResult | None:
    try:
        return pending.result()
    except HastoreError:
        return None


def _message_json(
    label: str, pending: PendingSend, result: SendResult | None, latency_s: float | None
) -> dict[str, Any]:
    return {
        "status": _json_label(label),
        "topic": pending.topic,
        "queue_id": pending.queue_id if result is None else result.queue_id,
        "queue_offset": None if result is None else result.queue_offset,
        "physic_offset": None if result is None else result.physic_offset,
        "message_id": None if result is None else result.message_id,
        "unique_key": pending.unique_key,
        "reason": None if label == PUT_OK else reason_of(pending),
        "latency_s": None if latency_s is None else round(latency_s, 6),
        "latency_ms": None if latency_s is None else round(latency_s * 1e3, 3),  # of 0.1.0
    }


def _json_label(label: str) -> str:
    """Return the label in ``hastore.produce/1``: SEND_OK, as RocketMQ's clients say, for PUT_OK."""
    return "SEND_OK" if label == PUT_OK else label


def _say_why(reason: str | None) -> None:
    if reason:
        head = f"  {style('why', fg='cyan')}   "
        say(folded(head, one_line(reason), sys.stderr))


def needs_ha_address(outcome: ProduceOutcome) -> bool:
    """Whether a next step names the master's HA port."""
    return PutMessageStatus.SLAVE_NOT_AVAILABLE.value in outcome.tally.reasons


@asynccontextmanager
async def progress_bar(order: ProduceOrder, outcome: ProduceOutcome) -> AsyncIterator[None]:
    """Show a progress bar on a terminal's stderr while many messages are sent."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    from hastore_cli.app.progress_bar import bar_on_stderr

    columns = (
        TextColumn(f"produce {order.topic}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(compact=True),
    )
    with bar_on_stderr(*columns, auto_refresh=False) as progress:
        task = progress.add_task("", total=order.source.total, text="", visible=False)

        async def refresh() -> None:
            while True:
                await trio.sleep(_REFRESH_S)
                tally = outcome.tally
                counts = "  ".join(
                    f"{format_count(count)} {label}"
                    for label, count in tally.ordered_counts().items()
                )
                progress.update(
                    task,
                    completed=order.source.done,
                    text=counts,
                    visible=not outcome.lists and tally.sent > 0,
                )
                progress.refresh()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            yield
            nursery.cancel_scope.cancel()

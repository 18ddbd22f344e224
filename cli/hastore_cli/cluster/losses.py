"""Asks the nodes of a group what a failover would lose, and what failovers have cut."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.client.admin import AdminClient
from hastore.cluster.loss import (
    Loss,
    NodeCut,
    NodeLoss,
    cut_json,
    cuts_by_epoch,
    lacking,
    merged,
)
from hastore.errors import AccessDeniedError, HastoreError, RequestFailedError
from hastore.ha.set_rules import nodes_text
from hastore.quantities import format_size, parse_address
from hastore.wire.remoting_codes import ResponseCode
from hastore_cli.acl.access_key import access_key
from hastore_cli.acl.asking_command import client_tls
from hastore_cli.app.terminal import columns, escaped, label_row, number
from hastore_cli.node.client import gather

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from hastore.cluster.group_records import EpochRecord, GroupView
    from hastore.store.tools.group_log import GroupLog

Addresses = dict[int, tuple[str, int]]

ASK_TIME_MAX_S: Final = 3.0  # a node that is gone must not hold a failover up
COUNT_TIME_MAX_S: Final = 30.0  # of all nodes; a log is walked with some 100 MB/s

_HEAD = ("node", "from", "to", "size", "messages", "confirmed", "topic")


def addresses_of(view: GroupView) -> Addresses:
    """Return the client ports of the nodes that are up."""
    return {
        node_id: parse_address(member.client_address)
        for node_id, member in view.members.items()
        if member.client_address is not None
    }


def known_ids(view: GroupView) -> frozenset[int]:
    """Return the ids of all nodes that may have something of the group's log."""
    in_set = frozenset[int]() if view.state is None else view.state.ids
    return frozenset(view.members) | frozenset(view.registrations) | in_set


@final
@attrs.frozen(kw_only=True)
class LogAnswers:
    """What nodes say of their logs: epochs, ends and cuts; and who does not say it, by id.

    Those that are ``too_old`` answer, but do not know the request yet: a rolling upgrade.
    """

    logs: Mapping[int, GroupLog]
    silent: tuple[int, ...]
    too_old: tuple[int, ...]

    @property
    def cuts(self) -> list[NodeCut]:
        """The cuts that nodes have kept."""
        return [NodeCut(node_id=at, cut=cut) for at, log in self.logs.items() for cut in log.cuts]


async def ask_logs(addresses: Addresses) -> LogAnswers:
    """Ask all nodes for their logs' epochs, ends and cuts.

    Raises AccessDeniedError if one of them wants another key: it is not silent.
    """
    silent, too_old = [], []

    async def ask(node_id: int) -> GroupLog | None:
        with trio.move_on_after(ASK_TIME_MAX_S):
            try:
                async with AdminClient.connect(
                    addresses[node_id], access_key=access_key(), tls=client_tls()
                ) as admin:
                    return await admin.group_log()
            except AccessDeniedError:
                raise
            except RequestFailedError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    too_old.append(node_id)
                    return None
            except HastoreError:
                pass
        silent.append(node_id)
        return None

    ids = list(addresses)
    answers = await gather(ask, ids)
    return LogAnswers(
        logs={at: log for at, log in zip(ids, answers, strict=True) if log is not None},
        silent=tuple(sorted(silent)),
        too_old=tuple(sorted(too_old)),
    )


async def survey_loss(addresses: Addresses, ids: Collection[int], to_id: int) -> Loss:
    """Say what would be lost if a node became master; ``ids`` are those of all nodes."""
    answers = await ask_logs(addresses)
    logs = dict(answers.logs)
    chosen = logs.pop(to_id, None)
    if chosen is None:
        unknown = tuple(sorted({*ids, to_id}))
        return Loss(to_id=to_id, silent=unknown, too_old=answers.too_old)
    found, silent = [], set(ids) - logs.keys() - {to_id}
    ranges = {node_id: lacking(chosen, log) for node_id, log in sorted(logs.items())}
    silent |= {node_id for node_id, missing in ranges.items() if missing is not None}
    with trio.move_on_after(COUNT_TIME_MAX_S):
        for node_id, missing in ranges.items():
            if missing is None:
                continue
            # One that has gone, or has cut its log, meanwhile stays silent.
            with contextlib.suppress(HastoreError):
                found.append(await _count(addresses[node_id], node_id, logs[node_id], *missing))
                silent.discard(node_id)
    return Loss(
        to_id=to_id,
        nodes=tuple(found),
        silent=tuple(sorted(silent)),
        too_old=answers.too_old,
    )


async def _count(
    address: tuple[str, int], node_id: int, log: GroupLog, begin: int, end: int
) -> NodeLoss:
    confirmed_end = min(max(log.confirm_offset or begin, begin), end)
    async with AdminClient.connect(address, access_key=access_key(), tls=client_tls()) as admin:
        # Twice, because the confirm offset may be inside a record.
        messages = await admin.count_messages(begin, end)
        confirmed = await admin.count_messages(begin, confirmed_end)
    return NodeLoss(
        node_id=node_id,
        begin=begin,
        end=end,
        messages=dict(messages.messages),
        confirmed=None if log.confirm_offset is None else dict(confirmed.messages),
        unread_from=messages.unread_from,
        confirmed_unread_from=confirmed.unread_from,
    )


# -- as text -------------------------------------------------------------------------------------


def loss_lines(loss: Loss) -> Iterator[str]:
    """Yield what would be lost; nothing if nothing is known to be."""
    if loss.nodes:
        yield (
            f"would be lost, at least: {counts_text(loss.at_least)}; the nodes that have it cut it"
            " off, and keep it in trimmed/"
        )
        rows = [row for node in loss.nodes for row in _rows(node)]
        yield from columns(_HEAD, rows)
    for node in loss.nodes:
        if node.unread_from is not None:
            yield (
                f"node {node.node_id} may have more than that: its log cannot be read at"
                f" {number(node.unread_from)}"
            )


def silent_lines(loss: Loss) -> Iterator[str]:
    """Yield of which nodes nothing is known, and why; nothing: all have answered."""
    too_old = frozenset(loss.too_old)
    for ids, why in (
        (frozenset(loss.silent) - too_old, "no answer in time"),
        (too_old, "its version cannot say it"),
    ):
        if ids:
            yield f"what {nodes_text(ids)} alone may have is not known: {why}"


def _rows(node: NodeLoss) -> Iterator[tuple[str, ...]]:
    for topic, count in sorted(node.messages.items()) or [("-", 0)]:
        confirmed = "-" if node.confirmed is None else number(node.confirmed.get(topic, 0))
        yield (
            str(node.node_id),
            number(node.begin),
            number(node.end),
            format_size(node.end - node.begin),
            number(count),
            confirmed,
            escaped(topic),
        )


def counts_text(counts: Mapping[str, int]) -> str:
    """Return ``orders 20, audit 3``."""
    texts = [f"{escaped(topic)} {number(count)}" for topic, count in sorted(counts.items())]
    return ", ".join(texts) or "no whole message"


# -- history -------------------------------------------------------------------------------------


def epochs_json(records: Sequence[EpochRecord], answers: LogAnswers) -> dict[str, Any]:
    """Return the epochs with what each has cut, and the cuts of no epoch that is known."""
    by_epoch, others = cuts_by_epoch([each.epoch for each in records], answers.cuts)
    return {
        "epochs": [
            {
                "epoch": each.epoch,
                "from": each.former_id,
                "to": each.master_id,
                "offset": each.end,
                "why": each.why,
                "at_ms": each.at_ms,
                "lost": dict(each.lost),
                "cuts": [cut_json(cut) for cut in by_epoch[each.epoch]],
            }
            for each in records
        ],
        "other_cuts": [cut_json(cut) for cut in others],
        **unknown_json(answers),
    }


def unknown_json(answers: LogAnswers) -> dict[str, Any]:
    """Return the ids of the nodes that do not say what they have cut."""
    return {"silent": list(answers.silent), "too_old": list(answers.too_old)}


def too_old_lines(answers: LogAnswers) -> Iterator[str]:
    """Yield for each node that is too old for it that its cuts are not shown."""
    for node_id in answers.too_old:
        yield f"node {node_id} is too old to say what it has cut: upgrade it"


def lost_text(lost: Mapping[str, int], cuts: Sequence[NodeCut]) -> str:
    """Return what an epoch's beginning has cost: what was known before, and what was cut since."""
    parts = [f"lost at least {counts_text(lost)}"] if lost else []
    for node_id in sorted({each.node_id for each in cuts}):
        own = [each.cut for each in cuts if each.node_id == node_id]
        counts = [each.messages for each in own]
        total = {topic: sum(c.get(topic, 0) for c in counts) for topic in merged(counts)}
        least = "at least " if any(each.unread_from is not None for each in own) else ""
        parts.append(f"node {node_id} cut {least}{counts_text(total)}")
    return "; ".join(parts) or "-"


def uncounted_cuts(cuts: Sequence[NodeCut]) -> Iterator[str]:
    """Yield for each cut that may have taken more messages than were counted why that is so."""
    for each in cuts:
        if each.cut.unread_from is not None:
            yield label_row(
                "note",
                f"node {each.node_id} may have cut more than that at"
                f" {number(each.cut.physic_offset)}: what begins at"
                f" {number(each.cut.unread_from)} could not be read",
            )

"""A failover of a group without a coordinator: who may become master, by what its nodes say.

::

    a majority records epoch e+1, which nobody leads      from then on it follows nobody older
    the newest log of this majority                       has all that was PUT_OK
    its node becomes master of epoch e+2

Every SyncStateSet of such a group is a majority of its ids, so a majority has a member of it.
Pure: the command asks and tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

import attrs

from hastore.errors import OperationRefusedError
from hastore.ha.set_rules import SetRules, nodes_text
from hastore.quantities import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.observe.node_status import NodeStatus


@final
@attrs.frozen(kw_only=True)
class NodeFacts:
    """What a node says of itself."""

    address: tuple[str, int]  # of its client port
    node_id: int | None  # None: of no group
    group: str | None
    is_master: bool
    last_epoch: int
    seen_epoch: int
    end: int
    end_epoch: int | None = None  # of the log's last byte; None: there is none, or not said
    configured_ids: tuple[int, ...] | None = None  # of the group; a master alone says it
    has_coordinator: bool = False
    is_unverified: bool = False  # messages inside its log may be missing

    @classmethod
    def of(cls, address: tuple[str, int], status: NodeStatus) -> Self:
        """Return those in a node's status."""
        sync_state = status.sync_state
        return cls(
            address=address,
            node_id=status.node_id,
            group=status.replica_group,
            is_master=status.role.endswith("MASTER"),
            last_epoch=status.epoch or 0,
            end_epoch=status.end_epoch,
            seen_epoch=status.seen_epoch or 0,
            end=status.max_offset,
            configured_ids=None if sync_state is None else sync_state.configured_ids,
            has_coordinator=status.coordinator is not None,
            is_unverified=status.unverified is not None,
        )

    @property
    def rank(self) -> tuple[int, int, int]:
        """The key by which the newest log comes first."""
        return -self.log_epoch, -self.end, self.node_id or 0

    @property
    def log_epoch(self) -> int:
        """The epoch of the log's last byte; an earlier version says only its newest epoch."""
        return self.last_epoch if self.end_epoch is None else self.end_epoch


@final
@attrs.frozen(kw_only=True)
class Plan:
    """The epochs, and who becomes master unless the majority's promises show a newer log."""

    nobodys_epoch: int
    epoch: int
    master_id: int
    loss: str | None  # what may be lost; None: nothing


def plan(
    nodes: Sequence[NodeFacts],
    ids: Sequence[int] | None,
    to_id: int | None = None,
    *,
    accept_loss: bool = False,
    force_with_live_master: bool = False,
) -> Plan:
    """Return what to do.  Raises OperationRefusedError where it could lose messages."""
    _check_group(nodes)
    masters = [each for each in nodes if each.is_master]
    if masters and not force_with_live_master:
        master = max(masters, key=lambda each: each.last_epoch)
        raise OperationRefusedError(
            f"node {master.node_id} answers, and is master of epoch {master.last_epoch}",
            hint="--force-with-live-master: it gives up its role first, and waiting puts are"
            " FLUSH_SLAVE_TIMEOUT",
        )
    seen = max(max(each.seen_epoch, each.last_epoch) for each in nodes)
    loss = _minority_text(nodes, ids or _configured(nodes))
    if loss is not None and not accept_loss:
        raise OperationRefusedError(loss, hint=f"name more nodes: --node HOST:PORT; {_ACCEPT}")
    chosen, lack = choose(nodes, to_id, accept_loss=accept_loss)
    return Plan(
        nobodys_epoch=seen + 1,
        epoch=seen + 2,
        master_id=chosen,
        loss=loss if lack is None else lack,
    )


_ACCEPT = "else --accept-loss, if the others are lost"


def _check_group(nodes: Sequence[NodeFacts]) -> None:
    if not nodes:
        raise OperationRefusedError("no node answers", hint="start them; check each --node")
    for each in nodes:
        where = f"{each.address[0]}:{each.address[1]}"
        if each.node_id is None or each.group is None:
            raise OperationRefusedError(
                f"{where} is no node of a replica group", hint="leave it out"
            )
        if each.group != nodes[0].group:
            raise OperationRefusedError(
                f"{where} is of group {each.group}, and {nodes[0].address[0]}:"
                f"{nodes[0].address[1]} of {nodes[0].group}",
                hint="name nodes of one group",
            )
        if each.has_coordinator:
            raise OperationRefusedError(
                f"the node at {where} has a coordinator, which decides",
                hint="hastore cluster failover --to ID --etcd URL",
            )
    found = [each.node_id for each in nodes]
    if len(set(found)) < len(found):
        twice = next(each for each in found if found.count(each) > 1)
        raise OperationRefusedError(
            f"two of the addresses are node {twice}", hint="name each node once"
        )


def _configured(nodes: Sequence[NodeFacts]) -> tuple[int, ...] | None:
    return next((each.configured_ids for each in nodes if each.configured_ids), None)


def _minority_text(nodes: Sequence[NodeFacts], ids: Sequence[int] | None) -> str | None:
    if ids is None:
        return "how many nodes the group has is not known: name all ids with --ids"
    there = frozenset(each.node_id for each in nodes if each.node_id is not None)
    if SetRules(configured_ids=frozenset(ids)).is_majority(there):
        return None
    return (
        f"{nodes_text(there)} alone {'are' if len(there) > 1 else 'is'} no majority of"
        f" {', '.join(map(str, sorted(ids)))}: the others may have acknowledged messages that are"
        " not here"
    )


def choose(
    nodes: Sequence[NodeFacts], to_id: int | None, *, accept_loss: bool = False
) -> tuple[int, str | None]:
    """Return the node with the newest log, or ``to_id``, and what that one lacks.

    Of equal logs a verified one is taken.  Raises OperationRefusedError for one that may lack
    something.
    """
    best = min(nodes, key=lambda each: (each.rank[:2], each.is_unverified, each.rank))
    assert best.node_id is not None, "checked"
    if to_id is None:
        to_id = best.node_id
    chosen = next((each for each in nodes if each.node_id == to_id), None)
    if chosen is None:
        ids = frozenset(each.node_id for each in nodes if each.node_id is not None)
        raise OperationRefusedError(
            f"node {to_id} is not one of those that answer: {nodes_text(ids)}",
            hint=f"name its client port with --node; or --to {best.node_id}",
        )
    if chosen.rank[:2] == best.rank[:2] and not chosen.is_unverified:
        return to_id, None
    if chosen.is_unverified:
        lack = f"node {to_id} has not compared its log with a master's: hastore status says why"
    elif chosen.log_epoch == best.log_epoch:
        lack = f"node {to_id} lacks {format_size(best.end - chosen.end)} that {_name(best)} has"
    else:
        lack = (
            f"the log of node {to_id} ends in epoch {chosen.log_epoch}, and that of {_name(best)}"
            f" in epoch {best.log_epoch}"
        )
    if not accept_loss:
        raise OperationRefusedError(
            f"{lack}: acknowledged messages may be lost",
            hint="else --accept-loss"
            if best.is_unverified
            else f"--to {best.node_id}, which has all; else --accept-loss",
        )
    return to_id, lack


def _name(facts: NodeFacts) -> str:
    return f"node {facts.node_id}"


def check_promises(promised: Sequence[NodeFacts], ids: Sequence[int] | None, epoch: int) -> None:
    """Check that those that have been told of ``epoch`` recorded it.

    Raises OperationRefusedError for a node whose coordinator decides instead.
    """
    for each in promised:
        if each.seen_epoch < epoch:
            raise OperationRefusedError(
                f"node {each.node_id} has not recorded epoch {epoch}: does a coordinator decide on"
                " its role?",
                hint="hastore cluster failover --to ID --etcd URL; hastore status of that node",
            )
    loss = _minority_text(promised, ids)
    if loss is not None:
        raise OperationRefusedError(
            loss, hint="run it again once they answer: the group has no master until then"
        )

"""Asks a group's coordinator, changes something there, and waits until a node is master."""

from __future__ import annotations

import contextlib
import getpass
import socket
from typing import TYPE_CHECKING, Final, final

import attrs
import click
import trio

from hastore.cluster.connecting import open_coordinator
from hastore.cluster.group_records import Keys, inspect_group, read_group
from hastore.cluster.key_value_store import follow
from hastore.config import REPLICA_GROUP
from hastore.errors import (
    ConfigError,
    CoordinatorUnreachableError,
    HastoreError,
    OperationRefusedError,
)
from hastore.trace import audit
from hastore_cli.app.log_output import audit_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from hastore.cluster.group_records import GroupView
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.operations import Change
    from hastore_cli.cluster.target import Target

_ATTEMPTS_MAX: Final = 5  # a group moves now and then, and not all the time
_VOID_AFTER_S: Final = 1.0  # for the master's view and the successor's, after the wish is gone


class TimedOutError(HastoreError):
    """The change was not seen in time; it may still happen."""

    exit_code = 5


@final
@attrs.frozen
class Asked:
    """A group at its coordinator."""

    store: KeyValueStore
    keys: Keys
    cluster: str
    group: str

    async def view(self) -> GroupView:
        """Return the group as it is now."""
        return read_group(self.keys, await self.store.read(self.keys.base))

    async def whatever_is_there(self) -> GroupView:
        """Return as much of the group as can be read."""
        return inspect_group(self.keys, await self.store.read(self.keys.base))

    async def change(
        self,
        decide: Callable[[Keys, GroupView], Change],
        *,
        dry_run: bool,
        is_repair: bool = False,
    ) -> tuple[Change, GroupView]:
        """Make a change, or only say which; return it, and the group that it was decided on.

        A repair also gets a group of which not all can be read.

        Raises OperationRefusedError, and CoordinatorUnreachableError if it may have been made.
        """
        change: Change | None = None
        with contextlib.nullcontext() if dry_run else audit_file():
            for _ in range(_ATTEMPTS_MAX):
                view = await (self.whatever_is_there() if is_repair else self.view())
                try:
                    change = decide(self.keys, view)
                except OperationRefusedError as error:
                    if not dry_run:
                        self._audit(None, "refused", str(error))
                    raise
                if dry_run or not change.writes:
                    return change, view
                try:
                    outcome = await self.store.commit(change.comparisons, change.writes)
                except CoordinatorUnreachableError as error:
                    self._audit(change, "unknown", str(error))
                    error.hint = "it may have been done, or not: hastore cluster status"
                    raise
                if outcome.succeeded:
                    self._audit(change, "done")
                    return change, view
            self._audit(change, "failed", "the group changed meanwhile")
            raise OperationRefusedError(
                f"the group changed {_ATTEMPTS_MAX} times meanwhile", hint="try again"
            )

    def _audit(self, change: Change | None, outcome: str, reason: str | None = None) -> None:
        """Record a change that this command makes, or does not make."""
        what = {"cluster": self.cluster, "group": self.group}
        if change is not None:
            keys = [write.key for write in change.writes]
            what |= {"change": change.what, "keys": ", ".join(keys)}
        audit(
            f"cluster-{click.get_current_context().info_name}",
            who=getpass.getuser(),
            peer=socket.gethostname(),
            what=what,
            outcome=outcome,
            reason=reason,
        )

    async def wait_for_master(self, to_id: int, after_epoch: int, timeout_s: float) -> int:
        """Wait until a node is master and serves; return its epoch.

        Raises OperationRefusedError once the wish for it was taken back, TimedOutError.
        """
        with trio.move_on_after(timeout_s):
            async with follow(self.store, self.keys.base) as snapshots:
                async for snapshot in snapshots:
                    view = read_group(self.keys, snapshot)
                    if _serves(view, to_id, after_epoch):
                        assert view.leader is not None
                        return view.leader.epoch
                    check_not_void(view, to_id, after_epoch)
        raise TimedOutError(
            f"node {to_id} was not master within {timeout_s:g} s",
            hint="it may still become it: hastore cluster status; and read its log",
        )


def _serves(view: GroupView, to_id: int, after_epoch: int) -> bool:
    leader, member = view.leader, view.members.get(to_id)
    return (
        leader is not None
        and leader.epoch > after_epoch
        and leader.holder.node_id == to_id
        and member is not None
        and member.role == "master"
    )


def check_not_void(view: GroupView, to_id: int, after_epoch: int) -> None:
    """Raise OperationRefusedError if another master leads, and nobody wishes for a change."""
    leader, wish = view.leader, view.config.switchover
    if leader is None or leader.holder.node_id == to_id:
        return
    if leader.epoch > after_epoch:
        raise OperationRefusedError(
            f"{leader.holder} became master of epoch {leader.epoch} instead",
            hint="hastore cluster status",
        )
    if leader.epoch == after_epoch and wish is None:
        raise OperationRefusedError(
            f"the switchover was taken back by {leader.holder}, which stays master of epoch"
            f" {leader.epoch}: {_why_void(view, to_id)}",
            hint="hastore cluster status; the master's log has the reason: switchover_void",
        )


def _why_void(view: GroupView, to_id: int) -> str:
    state, member = view.state, view.members.get(to_id)
    if member is None:
        return f"node {to_id} is not up any more"
    if state is not None and to_id not in state.ids:
        return f"node {to_id} has left the SyncStateSet"
    return f"node {to_id} did not take over in time"


@contextlib.asynccontextmanager
async def ask(target: Target, *, may_be_new: bool = False) -> AsyncIterator[Asked]:
    """Open the way to a group's coordinator while the block runs.

    Raises ConfigError if it does not know the group, and names those that it knows; a group that
    is named ``may_be_new``.
    """
    target.require_coordinator()
    async with open_coordinator(target.coordinator) as store:
        group = target.group
        prefix = target.coordinator.prefix
        if group is not None:
            keys = Keys.of(prefix, target.cluster, group)
            if may_be_new or (await store.read(keys.base)).items:
                yield Asked(store, keys, target.cluster, group)
                return
        known = groups_in((await store.read(f"{prefix}/")).items, prefix)
        group = _pick(known, target)
        yield Asked(store, Keys.of(prefix, target.cluster, group), target.cluster, group)


def groups_in(keys: Iterable[str], prefix: str) -> list[tuple[str, str]]:
    """Return cluster and group of all keys below a prefix."""
    found = {tuple(key.removeprefix(f"{prefix}/").split("/")[:2]) for key in keys}
    groups = (each for each in found if len(each) == 2 and REPLICA_GROUP.fullmatch(each[1]))
    return sorted((each[0], each[1]) for each in groups)


def _pick(known: list[tuple[str, str]], target: Target) -> str:
    here = [group for cluster, group in known if cluster == target.cluster]
    if target.group is None and len(here) == 1:
        return here[0]
    if target.group is None and here:
        raise ConfigError(
            f"cluster {target.cluster} has several groups: {', '.join(here)}",
            hint=f"name one: --group {here[0]}",
        )
    what = f"group {target.group}" if target.group else "any group"
    where = ", ".join(target.coordinator.endpoints)
    elsewhere = [each for each in known if target.group in {None, each[1]}]
    if elsewhere:
        cluster, name = elsewhere[0]
        hint = f"it knows group {name} in cluster {cluster}: --cluster {cluster}"
    elif here:
        hint = f"it knows {', '.join(here)}: --group {here[0]}"
    else:
        hint = "start the group's nodes: hastore node … --etcd URL; [cluster] prefix and name count"
    raise ConfigError(f"{where} does not know {what} in cluster {target.cluster}", hint=hint)

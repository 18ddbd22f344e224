"""The coordinator of a world's replica groups: what a story does to it, and what it says.

::

    story ── stop, cut_off, restore ──▶ its servers, and the ways to them   (each world's own)
    story ── change(switchover, 2) ──▶ a transaction, as of `hastore cluster`
    views(group) ──▶ ElectedGroups: who is master of which epoch ──▶ history
"""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from hastore.cluster.group_records import Keys, read_group
from hastore.cluster.key_value_store import follow
from hastore.errors import CoordinatorError
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.story.world import GROUP_NAME, ScenarioFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hastore.cluster.group_records import GroupView
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.operations import Change
    from hastore_scenarios.judge.history import History
    from hastore_scenarios.story.world import Backup, Node, Operate

_ASK_AGAIN_S: Final = 0.1


@attrs.define(eq=False, kw_only=True)
class StagedCoordinator(abc.ABC):
    """An etcd of ``servers`` servers; everything that is done to it goes into the history."""

    servers: int
    history: History
    stopped: int = attrs.field(default=0, init=False)  # servers
    unreached: dict[str, Node] = attrs.field(factory=dict, init=False)  # nodes that are cut off

    @property
    @abc.abstractmethod
    def store(self) -> KeyValueStore:
        """The story's own way to it."""

    # -- faults ----------------------------------------------------------------------------------

    async def stop(self, servers: int | None = None) -> None:
        """Stop some of its servers, None: all."""
        count = self.servers if servers is None else servers
        assert not self.stopped, "start() first"
        assert 0 < count <= self.servers, f"it has {self.servers} servers"
        begun_s = self.history.now_s()
        await self._stop(count)
        self.stopped = count
        what = "stopped" if count == self.servers else f"{count} of {self.servers} servers stopped"
        self._changed(what, begun_s, is_fault=True)

    async def start(self) -> None:
        """Start those that were stopped."""
        begun_s = self.history.now_s()
        await self._start()
        self.stopped = 0
        self._changed("started", begun_s)

    async def cut_off(self, *nodes: Node) -> None:
        """Let nothing pass between these nodes and it."""
        for node in nodes:
            begun_s = self.history.now_s()
            await self._cut_off(node)
            self.unreached[node.name] = node
            self._changed(f"cut off from {node.name}", begun_s, is_fault=True)

    async def reconnect(self, *nodes: Node) -> None:
        """Let everything pass again."""
        for node in nodes:
            begun_s = self.history.now_s()
            await self._reconnect(node)
            del self.unreached[node.name]
            self._changed(f"connected to {node.name} again", begun_s)

    async def restore(self, backup: Backup) -> None:
        """Go back to a backup."""
        begun_s = self.history.now_s()
        await self._restore(backup)
        self._changed("restored from a backup", begun_s, is_fault=True)

    async def heal(self) -> None:
        """End all faults."""
        if self.stopped:
            await self.start()
        await self.reconnect(*self.unreached.values())

    # -- what it says, and is asked --------------------------------------------------------------

    async def view(self, group: str = GROUP_NAME) -> GroupView:
        """Return what it says of a group."""
        keys = _keys_of(group)
        return read_group(keys, await self.store.read(keys.base))

    async def views(self, group: str = GROUP_NAME) -> AsyncGenerator[GroupView]:
        """Yield what it says of a group now, then after each change; wait for it to answer."""
        keys = _keys_of(group)
        while True:
            with contextlib.suppress(CoordinatorError):
                async with follow(self.store, keys.base) as snapshots:
                    async for snapshot in snapshots:
                        yield read_group(keys, snapshot)
            await trio.sleep(_ASK_AGAIN_S)

    async def wait_until(
        self,
        what: str,
        condition: Callable[[GroupView], bool],
        *,
        group: str = GROUP_NAME,
        within_s: float = 60.0,
    ) -> GroupView:
        """Wait until ``condition`` holds for what it says.  Raises ScenarioFailed."""
        view: GroupView | None = None
        with trio.move_on_after(within_s):
            async with contextlib.aclosing(self.views(group)) as views:
                async for view in views:
                    if condition(view):
                        return view
        raise ScenarioFailed(f"etcd: not within {within_s:g} s: {what}; last seen: {view}")

    async def change(
        self, operation: Operate, *args: object, group: str = GROUP_NAME, **how: object
    ) -> Change:
        """Commit what an operation of ``hastore.cluster.operations`` decides for a group."""
        keys = _keys_of(group)
        while True:
            begun_s = self.history.now_s()
            change = operation(keys, await self.view(group), *args, **how)
            if not change.writes:
                return change
            if (await self.store.commit(change.comparisons, change.writes)).succeeded:
                self._changed(f"a person asks: {change.what}", begun_s)
                return change

    def _changed(self, what: str, begun_s: float, *, is_fault: bool = False) -> None:
        text = f"etcd: {what}"
        self.history.event(EventKind.COORDINATOR, None, text, begun_s=begun_s, fault=is_fault)

    # -- what each world implements --------------------------------------------------------------

    @abc.abstractmethod
    async def backup(self) -> Any:
        """Return all that it has."""

    @abc.abstractmethod
    async def _stop(self, count: int) -> None:
        """Stop so many servers."""

    @abc.abstractmethod
    async def _start(self) -> None:
        """Start all servers that do not run; return once they serve."""

    @abc.abstractmethod
    async def _cut_off(self, node: Any) -> None:
        """Let nothing pass between a node and it."""

    @abc.abstractmethod
    async def _reconnect(self, node: Any) -> None:
        """Let everything pass again."""

    @abc.abstractmethod
    async def _restore(self, backup: Any) -> None:
        """Go back to a backup; return once all servers serve again."""


def _keys_of(group: str) -> Keys:
    return Keys.of("/hastore", "DefaultCluster", group)

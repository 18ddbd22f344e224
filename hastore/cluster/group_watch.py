"""A group as its coordinator says it is: kept by a watch, and read again after each doubt.

::

    watch ──────────────┐                          ┌──▶ on_view, on_doubt: the node decides again
    read after a write ─┼──▶ newer than known? ──▶ view
    read after a break ─┘         │                └──▶ identity.json, as the state moves
                                  └──▶ older, although asked later: it was restored to the past

A refused write is no doubt about the view: it is logged, and shown until the write is done.

Invariant: ``view`` falls behind only where the coordinator itself has gone back, and then
``restored`` says how, until a person has looked.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.observe.coordinator_status import NO_SPACE, NO_SPACE_HINT
from hastore.cluster.group_records import read_group
from hastore.cluster.key_value_store import follow
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import (
    CoordinatorError,
    CoordinatorLoginError,
    CoordinatorNoSpaceError,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
    DiskError,
    HastoreError,
    LeaseGoneError,
    ProtocolError,
)
from hastore.store.node_identity import CoordinatorMark
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.cluster.group_records import GroupView, Keys
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.env.interface import Env
    from hastore.store.node_identity import NodeIdentity

RETRY_PAUSE_S: Final = 1.0  # after the coordinator did not answer
ALARMS_INTERVAL_S: Final = 10.0  # between two questions for the coordinator's own alarms
_FULL_INTERVAL_S: Final = 2.0  # while it is full
_FOLLOW_PAUSE_S: Final = 0.5  # after the way to the coordinator broke

_ALARM_HINTS: Final = {NO_SPACE: NO_SPACE_HINT}

_log = logger("cluster")


@final
@attrs.define(eq=False)
class GroupWatch:
    """Keeps ``view``; ``run`` works until cancelled."""

    env: Env
    store: KeyValueStore
    keys: Keys
    on_view: Callable[[GroupView, bool], None]  # and whether the coordinator has gone back
    on_doubt: Callable[[], None]  # it does not answer
    view: GroupView | None = attrs.field(default=None, init=False)
    is_reachable: bool = attrs.field(default=False, init=False)
    is_silent: bool = attrs.field(default=False, init=False)  # unreachable: it answers nothing
    restored: str | None = attrs.field(default=None, init=False)  # how it went back in time
    # What is wrong with the coordinator itself: with NO_SPACE it answers, and writes nothing.
    alarms: frozenset[str] = attrs.field(default=frozenset(), init=False)
    _failure: HastoreError | None = attrs.field(default=None, init=False)  # the last, as logged
    _read_error: HastoreError | None = attrs.field(default=None, init=False)  # of the last read
    # What it refuses to do for this node, although it is reachable, by who asked for it.
    _refusals: dict[str, HastoreError] = attrs.field(factory=dict, init=False)
    _identity: Callable[[], NodeIdentity | None] = attrs.field(init=False)
    # What earlier starts have seen of it, until a person has looked; it is never older.
    _seen_before: CoordinatorMark | None = attrs.field(default=None, init=False)
    _state_moved: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _unanswered: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def begin(self, identity: Callable[[], NodeIdentity | None]) -> None:
        """Take the identity of the directory, which knows how far the coordinator was."""
        self._identity = identity
        current = identity()
        self._seen_before = None if current is None else current.current.coordinator

    @property
    def known(self) -> GroupView:
        """The newest that the coordinator has said, where it has said something."""
        assert self.view is not None
        return self.view

    def start(self, nursery: trio.Nursery) -> None:
        """Keep the view in ``nursery``."""
        nursery.start_soon(self._keep_view)
        nursery.start_soon(self._keep_reachable)
        nursery.start_soon(self._keep_mark)
        nursery.start_soon(self._keep_alarms)

    def failed(self, error: HastoreError, of: str) -> None:
        """Take that a request of a part of the node was not answered, or not as it should be.

        A store that is full, or that refuses a write, has answered: what is known of the group is
        still what it says.
        """
        if isinstance(error, CoordinatorNoSpaceError):
            self._take_alarms(self.alarms | {NO_SPACE})
            if self.view is None:  # no read says yet that it answers
                self._failure, self.is_silent = None, False
            return
        if self.is_reachable and error is not self._read_error and _is_of_one_request(error):
            if str(error) not in map(str, self._refusals.values()):
                _log.warning("coordinator_refusal", reason=str(error), next=error.hint)
            self._refusals[of] = error
            return
        if type(error) is not type(self._failure):
            _log.warning("coordinator_unreachable", reason=str(error), next=error.hint)
        self._failure = error
        self.is_reachable = False
        self.is_silent = isinstance(error, CoordinatorUnreachableError)
        self.on_doubt()
        self._unanswered.wakeup()

    def succeeded(self, of: str) -> None:
        """Take that all that a part of the node has asked for was done."""
        if self._refusals.pop(of, None) is not None and not self._refusals:
            _log.info("coordinator_refusal_over")

    async def refresh(self) -> None:
        """Read the group now: a transaction has changed it, or was refused because it changed."""
        before = self.view
        try:
            view = read_group(self.keys, await self.store.read(self.keys.base))
        except (CoordinatorError, ProtocolError) as error:
            self._read_error = error
            raise
        self._take(view, before)

    @property
    def trouble(self) -> str | None:
        """Why a request of this node cannot be done now; None if nothing is known against it."""
        if self.is_silent:
            return "the coordinator does not answer"
        if NO_SPACE in self.alarms:
            return f"the coordinator is full ({NO_SPACE})"
        return self.unusable_because

    @property
    def unusable_because(self) -> str | None:
        """Why it cannot be used although it answers: a damaged key, or what it refuses."""
        if self.is_reachable:
            return next(map(str, self._refusals.values()), None)
        return None if self._failure is None or self.is_silent else str(self._failure)

    def _take_alarms(self, alarms: frozenset[str]) -> None:
        before, self.alarms = self.alarms, alarms
        for alarm in sorted(alarms - before):
            _log.error("coordinator_alarm", alarm=alarm, next=_ALARM_HINTS.get(alarm))
        for alarm in sorted(before - alarms):
            _log.info("coordinator_alarm_over", alarm=alarm)

    async def _keep_alarms(self) -> None:
        """Ask for the coordinator's alarms: a group that changes nothing would not notice them."""
        while True:
            with contextlib.suppress(CoordinatorError):
                self._take_alarms(await self.store.alarms())
            is_full = NO_SPACE in self.alarms
            await trio.sleep(_FULL_INTERVAL_S if is_full else ALARMS_INTERVAL_S)

    async def _keep_reachable(self) -> None:
        """Read the group after a request without an answer, until there is one.

        The watch may be whole, and have nothing to say.
        """
        while True:
            await self._unanswered.wait_for_running()
            while not self.is_reachable:
                await trio.sleep(RETRY_PAUSE_S)
                with contextlib.suppress(CoordinatorError, ProtocolError):
                    await self.refresh()

    async def _keep_view(self) -> None:
        """Keep ``view`` what the coordinator says."""
        while True:
            try:
                await self.refresh()  # it may be older than what is known
                async with follow(self.store, self.keys.base) as snapshots:
                    async for snapshot in snapshots:
                        self._take(read_group(self.keys, snapshot))
            except (CoordinatorError, ProtocolError) as error:
                self._read_error = error
                self.failed(error, "watch")
            await trio.sleep(_FOLLOW_PAUSE_S * (0.5 + self.env.randomness.random()))

    def _take(self, view: GroupView, before: GroupView | None = None) -> None:
        """Take what the coordinator says; ``before``: what was known when it was asked."""
        known, mark = self.view, _mark_of(view)
        earlier = self._seen_before if before is None else _mark_of(before)
        went_back = None if earlier is None else earlier.went_back(mark)
        if known is not None and _is_taken_back(known, view):
            self.restored = self._seen_before = went_back = None  # a person has looked
        elif went_back is not None:
            self.restored = went_back
        elif known is not None and (
            known.cluster_id != view.cluster_id or view.revision < known.revision
        ):
            return  # something newer has overtaken it
        if not self.is_reachable and not isinstance(self._failure, CoordinatorRefusedError):
            _log.info("coordinator_reachable", revision=view.revision)
            self._failure = None
        self.view, self.is_reachable, self.is_silent = view, True, False
        self.on_view(view, went_back is not None)
        if self.restored is None and self._has_moved(mark):
            self._state_moved.wakeup()

    def _has_moved(self, mark: CoordinatorMark) -> bool:
        """Return whether the state, or the cluster, is another one than the directory's."""
        identity = self._identity()
        marked = None if identity is None else identity.current.coordinator
        return marked is None or (marked.cluster_id, marked.state_revision) != (
            mark.cluster_id,
            mark.state_revision,
        )

    async def _keep_mark(self) -> None:
        """Record in the directory how far the coordinator is, each time that the state moves.

        So a start notices, too, that the coordinator was restored to the past since.
        """
        while True:
            await self._state_moved.wait_for_running()
            view, identity = self.view, self._identity()
            if view is None or identity is None or self.restored is not None:
                continue
            try:
                await self.env.offload.run(partial(identity.see_coordinator, _mark_of(view)))
            except DiskError as error:
                _log.warning("mark_not_written", reason=str(error), next=error.hint)
                await trio.sleep(RETRY_PAUSE_S)
                self._state_moved.wakeup()


def _is_of_one_request(error: HastoreError) -> bool:
    """Return whether a refusal says nothing about other requests, and is repeated for this one."""
    if isinstance(error, (CoordinatorLoginError, LeaseGoneError)):
        return False
    return isinstance(error, CoordinatorRefusedError)


def _is_taken_back(known: GroupView, view: GroupView) -> bool:
    """Return whether the alarm was taken back between two views of one history."""
    has_gone = known.config.alarm is not None and view.config.alarm is None
    return has_gone and _mark_of(known).went_back(_mark_of(view)) is None


def _mark_of(view: GroupView) -> CoordinatorMark:
    return CoordinatorMark(
        cluster_id=view.cluster_id,
        revision=view.revision,
        state_revision=view.state_revision,
    )

"""The lease of the leader key: granted for a campaign, renewed while its holder leads, revoked.

::

    grant ──▶ the leader key goes with it? ──▶ renew ──▶ renew ──▶ … ──▶ release: revoked
                                                 │
                                                 └─ no answer: the members are asked (``Failsafe``)

Invariants: a campaign's lease is revoked, with an answer, before the next one is granted; the
master's ``Lease``, by which it decides, is renewed only for the lease that its leader key was
written with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.cluster.flush_watch import FlushWatch
from hastore.cluster.node_facts import is_leading
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import CoordinatorError, CoordinatorUnreachableError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.broker.node.group_node import GroupNode
    from hastore.cluster.failsafe import Failsafe
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.key_value_store import Lease as Grant
    from hastore.concurrency.lease import Lease

_NAME: Final = "lease"  # of this part, for ``GroupWatch.failed``

_log = logger("cluster")


@final
@attrs.define(eq=False, kw_only=True)
class LeaderLease:
    """A node's lease of the leader key, if it has one; ``keep`` works until cancelled."""

    node: GroupNode
    store: KeyValueStore
    watch: GroupWatch
    lease: Lease
    ttl_s: int
    failsafe: Failsafe
    on_change: Callable[[], None]  # the lease has ended, or is to end: decide again
    held: Grant | None = attrs.field(default=None, init=False)  # of the key, or of a campaign
    _is_given_up: bool = attrs.field(default=False, init=False)  # it is only to be revoked
    # When its last renewal was sent, and what was granted.
    _renewal: tuple[float, float] = attrs.field(default=(-math.inf, 0.0), init=False)
    _flush_watch: FlushWatch = attrs.field(factory=FlushWatch, init=False)
    _granted: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    # -- what is done with it --------------------------------------------------------------------

    async def grant(self) -> Grant:
        """Return a lease for the leader key; an earlier one is revoked first, with an answer."""
        if self.held is not None:
            await self.store.revoke(self.held.lease_id)
            self.held = None
        sent_at = self.lease.clock()
        grant = await self.store.grant(self.ttl_s)
        self.held, self._renewal = grant, (sent_at, grant.ttl_s)
        self._is_given_up = False
        self._granted.wakeup()
        return grant

    def prolong(self) -> bool:
        """Count the last renewal if the leader key goes with its lease; return whether it does."""
        held, view = self.held, self.watch.view
        if held is None or self._is_given_up or view is None:
            return False
        if view.leader_lease != held.lease_id:
            return False
        sent_at, granted_s = self._renewal
        self.lease.renewed(sent_at, self.ttl_s, granted_s)
        return True

    def give_up(self) -> None:
        """Decide nothing from now on, and renew it no more."""
        self._is_given_up = True
        self.lease.end()

    async def release(self) -> None:
        """Give the leader key up, and any campaign that may still be answered."""
        held = self.held
        if held is None:
            return
        self.give_up()
        await self.store.revoke(held.lease_id)
        if self.held is held:
            self.held = None

    # -- its renewal -----------------------------------------------------------------------------

    @property
    def _pause_s(self) -> float:
        return self.ttl_s / 3

    async def keep(self) -> None:
        """Renew the lease, whenever there is one."""
        while True:
            held, sent_at = self.held, self.lease.clock()
            if self._flush_hangs(sent_at):
                await self._give_up_hanging()
                continue
            if held is None or self._is_given_up:
                self.watch.succeeded(_NAME)
                await self._wait_without_lease()
                continue
            try:
                with trio.fail_after(self._pause_s / 2):  # then there is time to ask the members
                    granted_s = await self.store.renew(held.lease_id)
            except CoordinatorUnreachableError as error:
                await self._without_answer(error)
                continue
            except trio.TooSlowError:
                what = f"no answer within {self._pause_s / 2:g} s to the renewal of a lease"
                await self._without_answer(CoordinatorUnreachableError(what))
                continue
            except CoordinatorError as error:
                self.watch.failed(error, _NAME)
                await trio.sleep(self._pause_s / 4)
                continue
            self.watch.succeeded(_NAME)
            if held is not self.held:
                continue
            if granted_s is None:
                _log.warning("lease_gone", lease=held.lease_id)
                self.held = None
                self.on_change()
                continue
            self._renewal = sent_at, granted_s
            if self.prolong():
                self.failsafe.is_active = False
            with trio.move_on_after(self._pause_s):
                await self._granted.wait_for_running()

    async def _wait_without_lease(self) -> None:
        """Wait for a lease; a master that lost its own asks the members, while etcd is silent."""
        if not is_leading(self.node, self.lease):
            await self._granted.wait_for_running()
            return
        if self.watch.is_silent:
            await self.failsafe.ask_members()
        with trio.move_on_after(self._pause_s / 4):
            await self._granted.wait_for_running()

    async def _without_answer(self, error: CoordinatorError) -> None:
        """Go on as master for as long as all members promise that none of them stands."""
        self.watch.failed(error, _NAME)
        if is_leading(self.node, self.lease):
            await self.failsafe.ask_members()
        with trio.move_on_after(self._pause_s / 4):
            await self._granted.wait_for_running()

    def _flush_hangs(self, now: float) -> bool:
        """Return whether this master's disk has synced nothing of what waits for too long."""
        role_node = self.node.role_node
        if not isinstance(role_node, Master):
            self._flush_watch.forget()
            return False
        log = role_node.commit_log
        # Few dirty pages wait for more, at most for that interval.
        thorough_s = role_node.config.store.flush_thorough_interval_ms / 1000
        return self._flush_watch.hangs(
            now,
            flushed=log.flushed_offset,
            end=log.max_offset,
            limit_s=self.ttl_s + thorough_s,
        )

    async def _give_up_hanging(self) -> None:
        """Let the lease end: another disk may be well."""
        _log.error("disk_hangs", ttl_s=self.ttl_s, next="look at this machine's disk")
        self._flush_watch.forget()
        self.give_up()
        self.on_change()
        await self._granted.wait_for_running()  # until it leads again

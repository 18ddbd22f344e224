"""Keeps what a node says of itself in the coordinator: ``members/ID``, and the lease it goes with.

Written where it has changed, by compare-and-swap with the node's own last write, so that two
processes of one id notice each other.  While a master leads, the end of the log alone is written
every ``END_INTERVAL_S`` at most: each write is a revision, which etcd keeps until it is compacted.
Without a leader, and in an election, the record has the end as it is.

A record of another directory may have been left by its
last process, which was killed before ``hastore cluster remove`` freed the id, or just after.  Its
lease ends it, unless that process still runs: some leases later that is known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.cluster.group_records import Member
from hastore.cluster.group_watch import RETRY_PAUSE_S
from hastore.cluster.key_value_store import Absent, Put, Unchanged
from hastore.errors import CoordinatorError, LeaseGoneError, ProtocolError, WrongNodeError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.cluster.group_records import Keys
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.key_value_store import KeyValue, KeyValueStore
    from hastore.cluster.key_value_store import Lease as Grant
    from hastore.cluster.node_facts import NodeFacts

END_INTERVAL_S: Final = 15.0  # between two writes that only say how far the log is
_NAME: Final = "member"  # of this part, for ``GroupWatch.failed``

_log = logger("cluster")


@final
@attrs.define(eq=False, kw_only=True)
class OwnMember:
    """The record of one start of a node; ``keep`` works until cancelled."""

    store: KeyValueStore
    keys: Keys
    watch: GroupWatch
    facts: NodeFacts
    now_ms: Callable[[], int]  # the wall clock, so that a reader sees how old the record is
    session: Grant | None = attrs.field(default=None, init=False)  # the record's lease
    _published: Member | None = attrs.field(default=None, init=False)
    _published_revision: int = attrs.field(default=0, init=False)
    _published_at: float = attrs.field(default=-math.inf, init=False)  # trio's time
    _publishing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # Until when another directory's record may be in the way, in trio's time; None: none is.
    _blocked_until: float | None = attrs.field(default=None, init=False)

    async def keep(self) -> None:
        """Renew the lease, and write the record again where it changed."""
        while True:
            try:
                if self.session is not None:
                    granted_s = await self.store.renew(self.session.lease_id)
                    if granted_s is None:
                        self.session = None
                await self.publish(self.facts.stands_in)
                await self.watch.refresh()  # a watch may be dead, and not know it
            except (CoordinatorError, ProtocolError) as error:
                self.watch.failed(error, _NAME)
                await trio.sleep(RETRY_PAUSE_S)
                continue
            self.watch.succeeded(_NAME)
            await trio.sleep(self.facts.config.ttl_s / 3)

    async def publish(self, election: int | None) -> None:
        """Write the record, unless it says so already.

        Waits while another directory's record is there.  Raises WrongNodeError if that stays, and
        CoordinatorError.
        """
        async with self._publishing:
            while True:
                member = self.facts.member(election)
                if self.session is None:
                    self.session = await self.store.grant(self.facts.config.ttl_s)
                    self._published, self._published_revision = None, 0
                if self._is_said(member) or await self._write(member):
                    return

    def _is_said(self, member: Member) -> bool:
        """Return whether the coordinator has a record, or has one whose end is near enough."""
        view, published = self.watch.view, self._published
        if published is None or (view is not None and self.facts.me.node_id not in view.members):
            return False
        is_led = self.watch.is_reachable and view is not None and view.leader is not None
        is_led = is_led and member.election is None and not self._is_below_floor(published, member)
        if is_led and trio.current_time() < self._published_at + END_INTERVAL_S:
            published = attrs.evolve(published, end=member.end, end_epoch=member.end_epoch)
        return member == published

    def _is_below_floor(self, published: Member, member: Member) -> bool:
        """Return whether the record, unlike the log, ends below what the group has confirmed.

        Until it is written the node would count as one that has lost something.
        """
        state = None if self.watch.view is None else self.watch.view.state
        return state is not None and published.end < state.confirm_offset <= member.end

    async def _write(self, member: Member) -> bool:
        """Write the record in place of what is known; return False if something else is there."""
        assert self.session is not None, "a record has a lease"
        key, revision = self.keys.member(self.facts.me.node_id), self._published_revision
        dated = attrs.evolve(member, at_ms=self.now_ms(), ttl_s=math.ceil(self.session.ttl_s))
        put = Put(key, dated.encode(), lease=self.session.lease_id)
        self._published = None
        comparison = Unchanged(key, revision) if revision else Absent(key)
        try:
            outcome = await self.store.commit([comparison], [put])
        except LeaseGoneError:
            self.session = None
            raise
        if outcome.succeeded:
            self._published, self._published_revision = member, outcome.revision
            self._published_at = trio.current_time()
            self._blocked_until = None
            return True
        item = (await self.store.read(key)).items.get(key)
        if item is None or self._is_own(item):
            self._published_revision = 0 if item is None else item.mod_revision
        else:
            await self._wait_for_other(Member.decode(item.key, item.value))
        return False

    def _is_own(self, item: KeyValue) -> bool:
        """Return whether a record is of this node's directory, or of none and may be replaced."""
        try:
            found = Member.decode(item.key, item.value).node
            if found.node_id != self.facts.me.node_id:
                raise ProtocolError(f"{item.key} names {found}")
            return found.uuid == self.facts.me.uuid
        except ProtocolError as error:
            _log.warning("record_replaced", key=item.key, reason=str(error))
            return True

    async def _wait_for_other(self, other: Member) -> None:
        """Wait for the end of another directory's record.  Raises WrongNodeError."""
        path, who = self.facts.node.config.store.data_dir, f"{self.facts.me} of {self.keys.base}"
        now, wait_s = trio.current_time(), other.gone_within_s(self.facts.config.ttl_s)
        if self._blocked_until is None:
            self._blocked_until = now + wait_s
            _log.warning(
                "node_id_in_use",
                reason=f"another directory than {path} was {who} until now",
                next=f"wait: its lease is over within {wait_s} s, unless it runs",
            )
        elif now >= self._blocked_until:
            raise WrongNodeError(
                f"another directory than {path} runs as {who}",
                path=path,
                hint="give one of the two another id, and an empty directory",
            )
        await trio.sleep(RETRY_PAUSE_S)
        if self.session is not None and await self.store.renew(self.session.lease_id) is None:
            self.session = None

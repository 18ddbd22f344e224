"""Keeps what a node says of itself in the coordinator: ``members/ID``, and the lease it goes with.

Written where it has changed, by compare-and-swap with the node's own last write, so that two
processes of one id notice each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.cluster.group_records import Member
from hastore.cluster.group_watch import RETRY_PAUSE_S
from hastore.cluster.key_value_store import Absent, Put, Unchanged
from hastore.errors import CoordinatorError, LeaseGoneError, ProtocolError, WrongNodeError

if TYPE_CHECKING:
    from hastore.cluster.group_records import Keys
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.cluster.key_value_store import Lease as Grant
    from hastore.cluster.node_facts import NodeFacts


@final
@attrs.define(eq=False, kw_only=True)
class OwnMember:
    """The record of one start of a node; ``keep`` works until cancelled."""

    store: KeyValueStore
    keys: Keys
    watch: GroupWatch
    facts: NodeFacts
    session: Grant | None = attrs.field(default=None, init=False)  # the record's lease
    _published: Member | None = attrs.field(default=None, init=False)
    _published_revision: int = attrs.field(default=0, init=False)
    _publishing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

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
                self.watch.failed(error)
                await trio.sleep(RETRY_PAUSE_S)
                continue
            await trio.sleep(self.facts.config.ttl_s / 3)

    async def publish(self, election: int | None) -> None:
        """Write the record, unless it says so already.

        Raises CoordinatorError, and WrongNodeError if another directory writes it, too.
        """
        async with self._publishing:
            member = self.facts.member(election)
            if self.session is None:
                self.session = await self.store.grant(self.facts.config.ttl_s)
                self._published, self._published_revision = None, 0
            view = self.watch.view
            is_there = view is None or view.members.get(self.facts.me.node_id) is not None
            if member == self._published and is_there:
                return
            key = self.keys.member(self.facts.me.node_id)
            put = Put(key, member.encode(), lease=self.session.lease_id)
            self._published = None
            while True:
                revision = self._published_revision
                comparison = Unchanged(key, revision) if revision else Absent(key)
                try:
                    outcome = await self.store.commit([comparison], [put])
                except LeaseGoneError:
                    self.session = None
                    raise
                if outcome.succeeded:
                    self._published, self._published_revision = member, outcome.revision
                    return
                item = (await self.store.read(key)).items.get(key)
                self._published_revision = 0 if item is None else item.mod_revision
                if item is not None:
                    self._check_is_own(key, item.value)

    def _check_is_own(self, key: str, data: bytes) -> None:
        """Raise WrongNodeError if another directory says that it is this node."""
        other = Member.decode(key, data).node
        if other.uuid != self.facts.me.uuid:
            path = self.facts.node.config.store.data_dir
            raise WrongNodeError(
                f"another directory than {path} runs as {self.facts.me} of {self.keys.base}",
                path=path,
                hint="give one of the two another id, and an empty directory",
            )

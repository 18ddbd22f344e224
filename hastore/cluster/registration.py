"""Claims a node's id for one start of its directory: ``ids/ID``, by compare-and-swap of a token.

::

    identity.json              ids/ID                members/ID
    token A                    A
    former A, token B          A                                   durable before etcd is asked
    former A, token B          A ──────▶ B           absent        one transaction
    token B                    B                                   then the node may acknowledge

The directory has the token that etcd has, or its successor, however a start was interrupted.  A
copy of it, or an older state of it, has another one: while the node of this id is up, its start is
refused; otherwise it gets a start number that neither history has counted, and has proved nothing.

A directory that the coordinator knows in another group is refused before anything is written.

Invariant: once ``register`` has returned, no other directory, and no other history of this one, can
run under the id.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.cluster.group_records import (
    LEASES_WAITED,
    GroupState,
    Incarnation,
    Member,
    Registration,
    inspect_group,
)
from hastore.cluster.group_watch import RETRY_PAUSE_S
from hastore.cluster.key_value_store import Absent, Put, Unchanged
from hastore.errors import (
    CoordinatorError,
    CoordinatorNoSpaceError,
    CoordinatorRefusedError,
    HastoreError,
    ProtocolError,
    WrongNodeError,
)
from hastore.store.node_identity import draw_uuid
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.cluster.group_records import GroupView, Keys
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.key_value_store import KeyValue, KeyValueStore
    from hastore.env.interface import Env
    from hastore.store.node_identity import NodeIdentity

REFUSED_MAX_S: Final = 30.0  # of requests after the first one
_REGISTRATION_PARTS: Final = 4  # CLUSTER/GROUP/ids/ID
_NAME: Final = "claim"  # of this part, for ``GroupWatch.failed``

_log = logger("cluster")


@final
@attrs.define(eq=False, kw_only=True)
class NodeRegistration:
    """One start of a node, to be registered."""

    store: KeyValueStore
    keys: Keys
    identity: NodeIdentity
    env: Env
    ttl_s: float
    place: str | None  # of this process's directory: see ``Member``
    # The directory has been in a group with a coordinator: another name is probably a mistake.
    has_taken_part: bool = False
    token: str = attrs.field(init=False)
    # Those of earlier starts: a late request of one may be carried out after the first answer.
    _own_tokens: frozenset[str | None] = attrs.field(init=False)
    # What the coordinator had (None: nothing) when the token was recorded in the directory.
    _recorded_beside: Registration | None = attrs.field(default=None, init=False)
    _is_recorded: bool = attrs.field(default=False, init=False)
    # Until when another process of this id may run, in trio's time; None: none is known.
    _blocked_until: float | None = attrs.field(default=None, init=False)
    # The revision of a record that cannot be read, and for whose replacement it waits; 0: none.
    _unreadable_revision: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Draw the token of this start."""
        self.token, current = draw_uuid(self.env.randomness), self.identity.current
        self._own_tokens = frozenset({current.token, current.former_token})

    @property
    def me(self) -> Incarnation:
        """This start, as the directory has it now."""
        current = self.identity.current
        return Incarnation(current.node_id, current.uuid, current.starts)

    @property
    def data_dir(self) -> str:
        """The directory, for messages."""
        return self.identity.path.rpartition("/")[0]

    async def register(self, on_failure: Callable[[HastoreError], None]) -> None:
        """Claim the id; retry while the coordinator does not answer, after ``on_failure``.

        Raises WrongNodeError, DiskError, and CoordinatorRefusedError if the coordinator refuses the
        first request for another reason than want of space, or later ones for
        ``REFUSED_MAX_S``: an operator may be changing the password.
        """
        is_first, refused_since = True, None
        while True:
            try:
                if await self.claim():
                    return
            except CoordinatorNoSpaceError as error:
                on_failure(error)  # an operator makes room
                refused_since = None
            except CoordinatorRefusedError as error:
                now = trio.current_time()
                refused_since = now if refused_since is None else refused_since
                if is_first or now >= refused_since + REFUSED_MAX_S:
                    raise
                on_failure(error)
            except (CoordinatorError, ProtocolError) as error:
                on_failure(error)
                self._blocked_until = None  # while etcd is down no lease ends
                refused_since = None
            else:
                is_first, refused_since = False, None
                continue
            is_first = False
            await trio.sleep(RETRY_PAUSE_S)

    async def keep(self, watch: GroupWatch) -> None:
        """Write this start's claim again where the coordinator has an earlier one, or has lost it.

        Until that is written, this directory would not be recognised at its next start, and a copy
        from the time of a backup would.  Works until cancelled.
        """
        while True:
            await trio.sleep(self.ttl_s)
            view = watch.view
            if view is None or watch.restored is not None or not self._is_outdated(view):
                continue
            try:
                await self._write_again()
            except (CoordinatorError, ProtocolError) as error:
                watch.failed(error, _NAME)
            else:
                watch.succeeded(_NAME)

    def _is_outdated(self, view: GroupView) -> bool:
        """Return whether a claim is one of an earlier start of this directory, or is lost.

        An id that was freed has no claim either, but then the state does not name the directory.
        A claim that cannot be read is damaged, if this start's record is there: another process of
        this id would have replaced that.
        """
        me, known = self.me, view.registrations.get(self.me.node_id)
        if known is not None:
            return known.uuid == me.uuid and known.start < me.start
        if self.keys.registration(me.node_id) in view.damaged:
            said = view.members.get(me.node_id)
            return said is not None and said.node == me
        named = None if view.state is None else view.state.member(me.node_id)
        return named is not None and named.uuid == me.uuid and named.start <= me.start

    async def _write_again(self) -> None:
        key, state_key = self.keys.registration(self.me.node_id), self.keys.state
        snapshot = await self.store.read(self.keys.base)
        group = inspect_group(self.keys, snapshot)
        if not self._is_outdated(group):
            return
        item, agreed = snapshot.items.get(key), snapshot.items.get(state_key)
        same: list[Absent | Unchanged] = [Absent(key)]
        if item is not None:
            same = [Unchanged(key, item.mod_revision)]
        elif agreed is not None:  # else it might take an id that is freed just now
            same.append(Unchanged(state_key, agreed.mod_revision))
        outcome = await self.store.commit(same, [self._put(key)])
        if outcome.succeeded:
            had = "no readable start of it"
            if item is None:
                had = "no start of it"
            elif self.me.node_id in group.registrations:
                had = "an earlier start"
            _log.warning("claim_written_again", reason=f"the coordinator had {had}")

    def _put(self, key: str) -> Put:
        own = Registration(uuid=self.me.uuid, start=self.me.start, nonce=self.token)
        return Put(key, own.encode())

    async def claim(self) -> bool:
        """Write this start to ``ids/ID``; return whether it is there.  Raises WrongNodeError."""
        key = self.keys.registration(self.me.node_id)
        items = (await self.store.read(self.keys.base)).items
        item = items.get(key)
        known = None if item is None else Registration.decode(key, item.value)
        if known is not None and self._is_recorded and known.nonce == self.token:
            await self.env.offload.run(self.identity.claimed)
            return True
        if known is None and self.has_taken_part:
            await self._check_is_nowhere_else()
        if known is not None and known.uuid != self.me.uuid:
            raise WrongNodeError(
                f"{self.data_dir} is another directory than the one that {self.keys.base} knows as"
                f" {self.me}",
                path=self.data_dir,
                hint=f"give this node another id; or, if the other directory is lost: hastore"
                f" cluster remove {self.me.node_id}, and start it again",
            )
        is_ours = self._is_ours(known, items)
        left = await self._wait_for_other(items, is_ours=is_ours)
        if left is None:
            return False
        await self._record(known, items, is_ours=is_ours)
        same = Absent(key) if item is None else Unchanged(key, item.mod_revision)
        outcome = await self.store.commit([same, *left], [self._put(key)])
        if outcome.succeeded:
            await self.env.offload.run(self.identity.claimed)
        return outcome.succeeded

    def _named_start(self, items: Mapping[str, KeyValue]) -> int:
        """Return the start in which the state names this directory; 0 if it does not.

        Raises ProtocolError if the state cannot be read.
        """
        item = items.get(self.keys.state)
        if item is None:
            return 0
        named = GroupState.decode(item.key, item.value).member(self.me.node_id)
        return named.start if named is not None and named.uuid == self.me.uuid else 0

    def _is_ours(self, known: Registration | None, items: Mapping[str, KeyValue]) -> bool:
        """Return whether the coordinator's token is one of this directory's.

        A directory that has never claimed its id has none, nor has a copy of it from before its
        first claim: then the state may name it.
        """
        current = self.identity.current
        if self._is_recorded and known == self._recorded_beside:
            return True  # as decided then
        if known is None:
            if self._is_recorded or current.token is not None:
                return False
            return not self._named_start(items)
        if current.token is None and "/" in known.nonce:
            return known.start < self.me.start  # both are of an earlier version, without tokens
        return known.nonce in self._own_tokens

    async def _wait_for_other(
        self, items: Mapping[str, KeyValue], *, is_ours: bool
    ) -> list[Absent | Unchanged] | None:
        """Return comparisons by which no other process of this id is up; None to look again.

        A record in ``members/ID`` may be left by a process that has ended: this directory's last
        one, whose lock this process holds, or another one, whose lease ends.  One that cannot be
        read, and has no lease, is a person's: a process of this id that is up replaces it soon, so
        it is replaced here once it has stayed for long enough.  Raises WrongNodeError if another
        process keeps its record.
        """
        key = self.keys.member(self.me.node_id)
        item = items.get(key)
        if item is None:
            self._blocked_until = None
            return [Absent(key)]
        same = Unchanged(key, item.mod_revision)
        member = self._readable(item)
        place = None if member is None else member.place
        if is_ours and place is not None and place == self.place:
            return [same]
        path, now = self.data_dir, trio.current_time()
        wait_s = LEASES_WAITED * self.ttl_s if member is None else member.gone_within_s(self.ttl_s)
        if self._blocked_until is None:
            self._blocked_until = now + wait_s
            _log.warning(
                "node_id_in_use",
                reason=f"another process than this one was {self.me} of {self.keys.base} until now",
                next=f"wait: its lease is over within {wait_s:g} s, unless it runs",
            )
        elif now >= self._blocked_until and member is None and item.lease is None:
            return [same]
        elif now >= self._blocked_until:
            raise WrongNodeError(
                f"{path} is a copy, or an older state of its disk: another process runs as"
                f" {self.me} of {self.keys.base}",
                path=path,
                hint="give one of the two another id, and an empty directory",
            )
        await trio.sleep(RETRY_PAUSE_S)
        return None

    def _readable(self, item: KeyValue) -> Member | None:
        """Return what a record says; None, and the wait begins again, if it cannot be read."""
        try:
            member = Member.decode(item.key, item.value)
            if member.node.node_id == self.me.node_id:
                return member
            reason = f"it names {member.node}"
        except ProtocolError as error:
            reason = str(error)
        if item.mod_revision != self._unreadable_revision:
            self._unreadable_revision, self._blocked_until = item.mod_revision, None
            _log.warning("record_unreadable", key=item.key, reason=reason)
        return None

    async def _record(
        self, known: Registration | None, items: Mapping[str, KeyValue], *, is_ours: bool
    ) -> None:
        """Make the token durable in the directory, beside the one that the coordinator has.

        A directory that is not recognised gets a start above the one in which the state names it,
        too: where the claim is lost, it would count as the member that acknowledged in that start.
        """
        if self._is_recorded and known == self._recorded_beside:
            return
        matched = None if known is None or not is_ours else known.nonce
        if not is_ours:
            start = max(0 if known is None else known.start, self._named_start(items)) + 1
            doubt = "the coordinator knows another start: this is a copy, or an older state of it"
            if known is None:
                doubt = "the coordinator does not know this directory any more"
            elif known.start < self.me.start - 1:
                doubt = "the coordinator knows an earlier start: it was restored to the past"
            _log.warning("directory_not_recognised", reason=doubt, path=self.data_dir)
            await self.env.offload.run(partial(self.identity.disown, start, doubt))
        await self.env.offload.run(partial(self.identity.claim, matched, self.token))
        self._is_recorded, self._recorded_beside = True, known

    async def _check_is_nowhere_else(self) -> None:
        """Raise WrongNodeError if the coordinator knows the directory in another group.

        By a mistyped name of the cluster it would begin a second group, or join a foreign one.
        """
        try:
            items = (await self.store.read(f"{self.keys.prefix}/")).items
        except CoordinatorRefusedError:
            return  # it may read its own cluster only
        for key, item in items.items():
            cluster, group, node_id = self._place_of(key, item)
            if cluster is None or f"{self.keys.prefix}/{cluster}/{group}/" == self.keys.base:
                continue
            raise WrongNodeError(
                f"{self.data_dir} is node {node_id} of group {group} in cluster {cluster}, as etcd"
                f" knows it, and not of {self.keys.base}",
                path=self.data_dir,
                hint=f"set [cluster] name (or [node] cluster) to {cluster} and [node] group to"
                f" {group}; or, if it is to change: hastore cluster remove {node_id} --cluster"
                f" {cluster} --group {group}, and start it again",
            )

    def _place_of(self, key: str, item: KeyValue) -> tuple[str, str, str] | tuple[None, None, None]:
        """Return cluster, group and id of this directory's registration; None of other keys."""
        parts = key.removeprefix(f"{self.keys.prefix}/").split("/")
        if len(parts) == _REGISTRATION_PARTS and parts[2] == "ids":
            with contextlib.suppress(ProtocolError):
                if Registration.decode(key, item.value).uuid == self.me.uuid:
                    return parts[0], parts[1], parts[3]
        return None, None, None

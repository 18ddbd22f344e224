"""Bugs of leases, elections and proposals, planted into a simulated group with a coordinator.

Each is a function that patches the product with ``patch`` (pytest's MonkeyPatch).
"""

import contextlib
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import attrs
import pytest

from hastore.broker.node import group_node, master_store
from hastore.broker.node.log_comparison import LogComparison
from hastore.cluster import decide
from hastore.cluster.decide import Action, BecomeMaster, Knowledge, Wait
from hastore.cluster.group_records import (
    GroupState,
    GroupView,
    Incarnation,
    Leader,
    Member,
    Registration,
)
from hastore.cluster.key_value_store import Absent, Put, Unchanged
from hastore.cluster.own_member import OwnMember
from hastore.cluster.registration import NodeRegistration
from hastore.cluster.role_service import RoleService
from hastore.cluster.storage import Rounds
from hastore.cluster.term_coordinator import TermCoordinator
from hastore.concurrency.lease import Lease, margin_s
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import (
    CoordinatorError,
    CoordinatorNoSpaceError,
    DiskFullError,
    HastoreError,
    StaleEpochError,
)
from hastore.ha.set_proposal import Answer, Proposal
from hastore.sim.group.etcd_director import EtcdDirector
from hastore.store.node_identity import NodeIdentity
from hastore.store.reserve_file import ReserveFile
from hastore.store.tools.repair import log_repair
from tests.support.worlds.planted import Plant
from tests.support.worlds.planted_deletions import PLANTED_DELETIONS
from tests.support.worlds.planted_in_groups import (
    acknowledges_after_stepping_down,
    awaits_a_joining_node_once_it_is_accepted,
    elects_a_node_that_lost_its_cache,
    keep_no_confirm_marks,
    shrinks_before_it_is_accepted,
)
from tests.support.worlds.planted_in_proofs import PLANTED_IN_PROOFS

# -- leases ---------------------------------------------------------------------------------------


def decides_after_its_deadline(patch: pytest.MonkeyPatch) -> None:
    """A master decides puts until it has stepped down, however long its lease is over."""
    patch.setattr(Lease, "is_over", lambda _self: False)
    patch.setattr(Lease, "lasts", lambda _self: True)


def counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A deadline counts from the answer to a renewal, not from before it was sent."""
    answered_at: WeakKeyDictionary[Lease, dict[float, float]] = WeakKeyDictionary()

    def renewed(self: Lease, sent_at: float, asked_s: float, granted_s: float) -> None:
        at = answered_at.setdefault(self, {}).setdefault(sent_at, self.clock())
        ttl_s = min(asked_s, granted_s)
        self.deadline = max(self.deadline, at + ttl_s - margin_s(ttl_s))

    patch.setattr(Lease, "renewed", renewed)


def leases_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Deadlines are times of a clock that a person, or NTP, may set back."""
    patch.setattr(RoleService, "_now", lambda self: self.env.wall_clock.now_s())


# -- elections ------------------------------------------------------------------------------------


def stands_outside_the_set(patch: pytest.MonkeyPatch) -> None:
    """A node that is not in the SyncStateSet may stand, too."""
    why_barred, why_not_proven = decide.why_barred, decide.why_not_proven

    def barred(candidate: decide.Candidate, state: GroupState) -> str | None:
        is_member = state.member(candidate.node.node_id) is not None
        return why_barred(candidate, state) if is_member else None

    def not_proven(candidate: decide.Candidate, state: GroupState) -> str | None:
        is_member = state.member(candidate.node.node_id) is not None
        return why_not_proven(candidate, state) if is_member else None

    patch.setattr(decide, "why_barred", barred)
    patch.setattr(decide, "why_not_proven", not_proven)


def stands_with_another_directory(patch: pytest.MonkeyPatch) -> None:
    """A member whose directory is new stays a member: nobody compares the uuid."""

    def barred(candidate: decide.Candidate, state: GroupState) -> str | None:
        is_member = state.member(candidate.node.node_id) is not None
        return None if is_member else "it is not in the SyncStateSet"

    async def claim(self: NodeRegistration) -> bool:
        me, key = self.me, self.keys.registration(self.me.node_id)
        item = (await self.store.read(key)).items.get(key)
        own = Registration(uuid=me.uuid, start=me.start, nonce=self.token)
        comparison = Absent(key) if item is None else Unchanged(key, item.mod_revision)
        return (await self.store.commit([comparison], [Put(key, own.encode())])).succeeded

    patch.setattr(decide, "why_barred", barred)
    patch.setattr(decide, "why_not_proven", barred)
    patch.setattr(NodeRegistration, "claim", claim)
    patch.setattr(OwnMember, "_is_own", lambda _self, _item: True)
    patch.setattr(EtcdDirector, "remove", lambda _self, _node_id: None)


def continues_its_epoch_after_a_start(patch: pytest.MonkeyPatch) -> None:
    """A node that finds its own leader key, of an earlier start, goes on in that epoch."""
    as_leader = decide._decide_as_leader

    def go_on(known: Knowledge, state: GroupState, leader: Leader) -> Action:
        own = known.own
        is_own = leader.holder.uuid == own.node.uuid and leader.holder.start < own.node.start
        if is_own and state.master == leader.holder:
            return BecomeMaster(leader.epoch, state.ids)
        return as_leader(known, state, leader)

    def check(identity: NodeIdentity, epoch: int) -> None:
        if epoch < identity.current.seen_epoch:
            raise StaleEpochError("older", path="", epoch=epoch, seen_epoch=epoch)

    def begin(self: EpochHistory, entry: EpochEntry) -> EpochHistory:
        kept = [each for each in self.cut(entry.start_offset).entries if each.epoch < entry.epoch]
        return EpochHistory((*kept, entry))

    patch.setattr(decide, "_decide_as_leader", go_on)
    patch.setattr(master_store, "check_epoch", check)
    patch.setattr(group_node, "check_epoch", check)
    patch.setattr(EpochHistory, "begin", begin)


# -- the set --------------------------------------------------------------------------------------


def voids_a_proposal_after_a_read(patch: pytest.MonkeyPatch) -> None:
    """A proposal without an answer counts as void once the state is read without it."""

    async def write_once(self: TermCoordinator, proposal: Proposal) -> None:
        view = await self._read()
        if not self._is_mine(view):
            return
        assert view.state is not None
        members = self._members_of(proposal, view, view.state)
        if members is not None:
            change = attrs.evolve(view.state, members=members, proposal=proposal.number)
            with contextlib.suppress(CoordinatorError):
                await self._swap(view, change)
            view = await self._read()
        if self._is_mine(view):
            assert view.state is not None
            is_made = view.state.proposal == proposal.number
            await self._service.answer(proposal, Answer.ACCEPTED if is_made else Answer.VOIDED)

    keep_no_confirm_marks(patch)
    patch.setattr(TermCoordinator, "_write_proposal", write_once)


def names_a_start_whatever_link_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A member's newest start is named although the acks may be those of an earlier one."""

    def linked(self: TermCoordinator, view: GroupView, node_id: int) -> Member | None:
        member, group = view.members.get(node_id), self._service.sync_state_set
        node = group.acks.get(node_id)
        if member is None or node is None or node.ack_offset is None:
            return None
        return member if node.ack_offset >= group.confirm_offset else None

    patch.setattr(TermCoordinator, "_linked", linked)


def acknowledges_after_giving_up_its_role(patch: pytest.MonkeyPatch) -> None:
    """A node that gives up its role answers the puts that wait, and its lease does not end."""
    acknowledges_after_stepping_down(patch)
    patch.setattr(Lease, "end", lambda _self: None)


# -- an etcd that is full -------------------------------------------------------------------------


def ends_because_etcd_is_full(patch: pytest.MonkeyPatch) -> None:
    """A node that starts while etcd is full ends: it takes an operator for it to come back."""
    register = NodeRegistration.register

    async def register_or_end(
        self: NodeRegistration, on_failure: Callable[[HastoreError], None]
    ) -> None:
        def failed(error: HastoreError) -> None:
            if isinstance(error, CoordinatorNoSpaceError):
                raise error
            on_failure(error)

        await register(self, failed)

    patch.setattr(NodeRegistration, "register", register_or_end)


# -- full disks -----------------------------------------------------------------------------------


def keeps_its_role_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """A master that cannot store goes on, although other members have room."""
    patch.setattr(
        decide,
        "_decide_on_storage",
        lambda _known, _view, _state, until: Wait("it is master", until),
    )


def hands_over_to_a_full_node(patch: pytest.MonkeyPatch) -> None:
    """A master that cannot store asks the first member only, which may not be able to either."""

    def first(_rounds: Rounds, members: Iterable[Member], _now: float) -> Member | None:
        return min(members, key=lambda each: each.node.node_id, default=None)

    patch.setattr(Rounds, "choose_successor", first)
    patch.setattr(decide, "_lacks_room", lambda _own, _wish: False)


def needs_room_to_change_its_role(patch: pytest.MonkeyPatch) -> None:
    """A node keeps no reserve, and ends where there is no room for a small file."""
    patch.setattr(ReserveFile, "keep", lambda _self, _wanted: 0)
    goes_on = group_node._goes_on_after

    def ends(change: group_node.Change, error: HastoreError) -> bool:
        return not isinstance(error, DiskFullError) and goes_on(change, error)

    patch.setattr(group_node, "_goes_on_after", ends)


LOST = {"loss", "confirmed loss"}
UNCONFIRMED = {"ack", "confirm", "shown"}
# Each bug with the rules that describe it; any other rule would find it only by chance.
# -- repaired members -----------------------------------------------------------------------------


def repairs_without_a_mark(patch: pytest.MonkeyPatch) -> None:
    """`log repair` fills a member's messages, and its identity does not say so."""
    patch.setattr(log_repair, "_identity_of", lambda _disk, _data_dir: None)


def verifies_without_a_comparison(patch: pytest.MonkeyPatch) -> None:
    """An unverified member counts as verified once it is a slave."""

    async def run(self: LogComparison) -> None:
        found = self.identity.current.unverified
        if found is not None:
            await self.env.offload.run(lambda: self.identity.clear_unverified(found))

    patch.setattr(LogComparison, "run", run)


def elects_an_unverified_member(patch: pytest.MonkeyPatch) -> None:
    """What a member says of its log is published, and no election looks at it."""
    why_not = decide.why_not_proven

    @attrs.frozen
    class Verified:
        node: Incarnation
        kept_since: int
        doubt: str | None
        end: int
        unverified: None = None

    def why_not_proven(candidate: decide.Candidate, state: GroupState) -> str | None:
        whole = Verified(candidate.node, candidate.kept_since, candidate.doubt, candidate.end)
        return why_not(whole, state)

    patch.setattr(decide, "why_not_proven", why_not_proven)


PLANTED_WITH_ETCD: dict[Plant, set[str]] = {
    decides_after_its_deadline: {"lease"},
    counts_from_the_answer: {"lease"},
    leases_by_the_wall_clock: {"lease"},
    stands_outside_the_set: LOST | UNCONFIRMED,
    stands_with_another_directory: LOST | UNCONFIRMED | {"two nodes"},
    elects_a_node_that_lost_its_cache: LOST | UNCONFIRMED,
    continues_its_epoch_after_a_start: {"epoch twice"},
    shrinks_before_it_is_accepted: UNCONFIRMED,
    awaits_a_joining_node_once_it_is_accepted: UNCONFIRMED,
    # Master and state may disagree for ever.
    voids_a_proposal_after_a_read: LOST | UNCONFIRMED | {"liveness"},
    names_a_start_whatever_link_acknowledged: LOST | UNCONFIRMED,
    acknowledges_after_giving_up_its_role: {"ack", "lease"},
    ends_because_etcd_is_full: {"ended"},
    repairs_without_a_mark: {"unverified", "equal"},
    verifies_without_a_comparison: {"unverified", "equal"},
    elects_an_unverified_member: {"unverified"},
    keeps_its_role_on_a_full_disk: {"storage"},
    hands_over_to_a_full_node: {"storage"},
    needs_room_to_change_its_role: {"ended"},
    **PLANTED_IN_PROOFS,
    **PLANTED_DELETIONS,
}

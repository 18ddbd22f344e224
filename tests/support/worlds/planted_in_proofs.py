"""Bugs of what proves that a node has kept all that it acknowledged, planted with a coordinator.

Each is a function that patches the product with ``patch`` (pytest's MonkeyPatch).
"""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hastore.cluster import decide
from hastore.cluster.abstention import Abstention
from hastore.cluster.decide import OwnNode
from hastore.cluster.group_records import GroupState, GroupView, Incarnation, Member, Registration
from hastore.cluster.registration import NodeRegistration
from hastore.store.node_identity import Identity, NodeIdentity, Opening
from tests.support.worlds.planted import Plant

# -- claims ---------------------------------------------------------------------------------------


def compares_no_token(patch: pytest.MonkeyPatch) -> None:
    """Each directory with the uuid that etcd knows counts as the one that etcd knows."""

    def is_ours(self: NodeRegistration, known: Registration | None, _items: object) -> bool:
        return known is None or known.uuid == self.me.uuid

    patch.setattr(NodeRegistration, "_is_ours", is_ours)


def recognises_no_start(patch: pytest.MonkeyPatch) -> None:
    """No directory that has a token is recognised: each power cycle takes an operator."""

    def is_ours(self: NodeRegistration, known: Registration | None, _items: object) -> bool:
        if self._is_recorded and known == self._recorded_beside:
            return True
        return known is None and not self._is_recorded and self.identity.current.token is None

    patch.setattr(NodeRegistration, "_is_ours", is_ours)


def uses_start_numbers_again(patch: pytest.MonkeyPatch) -> None:
    """A directory with another token goes on with its own numbers, which the state may name."""

    def disown(self: NodeIdentity, _start: int, doubt: str) -> None:
        with self._lock:
            self._store(attrs.evolve(self.current, kept_since=self.current.starts, doubt=doubt))

    patch.setattr(NodeIdentity, "disown", disown)


def compares_no_start_with_the_state(patch: pytest.MonkeyPatch) -> None:
    """A directory that is not recognised may get the start that the state names."""
    patch.setattr(NodeRegistration, "_named_start", lambda _self, _items: 0)


def accepts_a_copy_beside_its_original(patch: pytest.MonkeyPatch) -> None:
    """Nothing but the token counts as a node claims its id, and a snapshot has the token."""

    async def wait(_self: NodeRegistration, _items: object, *, is_ours: bool) -> list[Any]:
        return []

    patch.setattr(NodeRegistration, "_wait_for_other", wait)


# -- what a start has found -----------------------------------------------------------------------


def _with_evidence(
    patch: pytest.MonkeyPatch,
    change: Callable[[Opening, Identity], tuple[Opening, Identity]],
) -> None:
    why_in_doubt = Opening.why_in_doubt

    def judge(self: Opening, before: Identity) -> str | None:
        opening, identity = change(self, before)
        return why_in_doubt(opening, identity)

    patch.setattr(Opening, "why_in_doubt", judge)


def records_no_finding_of_an_opening(patch: pytest.MonkeyPatch) -> None:
    """What an opening has trimmed is logged, and forgotten."""
    opened = Identity.opened

    def forget(self: Identity, opening: Opening) -> Identity:
        changed = opened(self, opening)
        return attrs.evolve(changed, kept_since=self.kept_since, doubt=self.doubt)

    patch.setattr(Identity, "opened", forget)


def takes_the_same_boot_for_a_proof(patch: pytest.MonkeyPatch) -> None:
    """As long as the machine has not booted, its page cache is believed to have everything."""

    def judge(self: Opening, before: Identity) -> str | None:
        is_same_boot = self.boot_id is not None and self.boot_id == before.boot_id
        has_kept = self.last_exit_ok or is_same_boot or before.acks_flushed
        return None if has_kept else "it stopped uncleanly"

    patch.setattr(Opening, "why_in_doubt", judge)


def does_not_compare_the_acked_offset(patch: pytest.MonkeyPatch) -> None:
    """That the machine's memory has a number is believed to prove something."""

    def ignore(opening: Opening, before: Identity) -> tuple[Opening, Identity]:
        kept = None if opening.acked_offset is None else 0
        return attrs.evolve(opening, acked_offset=kept), before

    _with_evidence(patch, ignore)


def lowers_the_confirm_mark_without_a_trace(patch: pytest.MonkeyPatch) -> None:
    """A mark above the log's end is lowered, and proves nothing."""
    _with_evidence(
        patch, lambda opening, before: (opening, attrs.evolve(before, confirm_mark=None))
    )


# -- elections ------------------------------------------------------------------------------------


def ignores_the_floor(patch: pytest.MonkeyPatch) -> None:
    """A log that ends below the confirm offset of the state may win."""
    why_barred = decide.why_barred

    def why(candidate: decide.Candidate, state: GroupState) -> str | None:
        return why_barred(candidate, attrs.evolve(state, confirm_offset=0))

    patch.setattr(decide, "why_barred", why)


def elects_the_unproven_without_all_members(patch: pytest.MonkeyPatch) -> None:
    """If none that stands is proven, the best of those that stand wins."""
    patch.setattr(decide, "_is_there", lambda _member, _view: True)


def prefers_the_unproven(patch: pytest.MonkeyPatch) -> None:
    """A proven node gives way to one that is not."""
    standing = decide._standing

    def stands(view: GroupView, state: GroupState) -> list[Member]:
        found = standing(view, state)
        unproven = [each for each in found if decide.why_not_proven(each, state) is not None]
        return unproven or found

    patch.setattr(decide, "_standing", stands)
    patch.setattr(decide, "_is_there", lambda _member, _view: True)


def leaves_out_the_unproven(patch: pytest.MonkeyPatch) -> None:
    """A new set has only proven members, so that fewer nodes have what is acknowledged."""

    def next_members(
        own: OwnNode, standing: list[Member], state: GroupState
    ) -> tuple[Incarnation, ...]:
        kept = [e.node for e in standing if decide.why_not_proven(e, state) is None]
        return tuple(sorted({own.node, *kept}))

    patch.setattr(decide, "_next_members", next_members)


def forgets_promises_of_another_ttl(patch: pytest.MonkeyPatch) -> None:
    """A start waits for its own ttl, whatever the ttl was when it promised."""
    earlier = property(lambda self: self.started_at + self.ttl_s)
    patch.setattr(Abstention, "earlier_until", earlier)


LOST = {"loss", "confirmed loss"}
UNCONFIRMED = {"ack", "confirm", "shown"}
# Each bug with the rules that describe it; any other rule would find it only by chance.
PLANTED_IN_PROOFS: dict[Plant, set[str]] = {
    compares_no_token: LOST | UNCONFIRMED,
    recognises_no_start: {"liveness"},
    uses_start_numbers_again: LOST | UNCONFIRMED,
    compares_no_start_with_the_state: LOST | UNCONFIRMED,
    accepts_a_copy_beside_its_original: {"two nodes"},
    records_no_finding_of_an_opening: LOST | UNCONFIRMED,
    takes_the_same_boot_for_a_proof: LOST | UNCONFIRMED,
    does_not_compare_the_acked_offset: LOST | UNCONFIRMED,
    lowers_the_confirm_mark_without_a_trace: LOST | UNCONFIRMED,
    ignores_the_floor: LOST | UNCONFIRMED,
    elects_the_unproven_without_all_members: LOST | UNCONFIRMED,
    prefers_the_unproven: LOST | UNCONFIRMED,
    leaves_out_the_unproven: {"dropped"},
    forgets_promises_of_another_ttl: {"promise", "lease"},
}

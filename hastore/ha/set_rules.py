"""How small a SyncStateSet may become.

A set may lose members on its own only as far as this table allows; n is the number of ids that the
configuration names, m is ``min_in_sync_replicas`` (where it is not set: 2 in a group of three nodes
or more that has a coordinator, else 1)::

    coordinator   configured ids   at once, when links close    after sync_state_timeout
    yes           n                > n / 2 of them, and ≥ m     ≥ m
    yes           not known        never                        ≥ m
    no            n                > n / 2 of them, and ≥ m     > n / 2 of them, and ≥ m
    no            not known        never                        never

Without a coordinator a person's failover asks a majority of the configured ids, so every set must
have a member in each majority: it must be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from hastore.config import InSyncReplicas

SYNC_STATE_TIMEOUT_S: Final = 5.0
_COPIES_MIN: Final = 2  # that an acknowledged message has, unless the configuration says otherwise
_TWO_COPIES_FROM: Final = 3  # nodes of a group: one can be down, and puts are still acknowledged
MEMBERS_MAX: Final = (
    64  # of a set; more than any group needs, so that peers cannot grow it for ever
)


def nodes_text(ids: AbstractSet[int]) -> str:
    """Return ``node 2``, or ``nodes 2, 3``."""
    return f"node{'s' if len(ids) > 1 else ''} {', '.join(map(str, sorted(ids)))}"


def default_min_in_sync_replicas(
    ids: AbstractSet[int], in_sync_replicas: InSyncReplicas = "all"
) -> int:
    """Return ``min_in_sync_replicas`` where a group with these ids does not set it.

    One copy of an acknowledged message is lost with one disk, so a group that can spare a node
    keeps two.  But ``in_sync_replicas`` 1 asks for one copy.  Only where a coordinator lets sets
    shrink: without one the majority of three nodes is two anyway.
    """
    if len(ids) < _TWO_COPIES_FROM:
        return 1
    return _COPIES_MIN if in_sync_replicas == "all" else min(_COPIES_MIN, in_sync_replicas)


@final
@attrs.frozen(kw_only=True)
class SetRules:
    """What bounds a SyncStateSet; all of it is fixed within an epoch."""

    min_in_sync_replicas: int = 1
    # Whether that is the default for the group's ids, and changes with them.
    follows_ids: bool = False
    # The ids of the group, the master's included; None: not known.  Others never become members.
    configured_ids: frozenset[int] | None = None
    has_coordinator: bool = False
    sync_state_timeout_s: float = SYNC_STATE_TIMEOUT_S

    def __attrs_post_init__(self) -> None:
        """Assert the ranges, which the configuration has checked."""
        assert self.min_in_sync_replicas >= 1, self
        assert self.sync_state_timeout_s > 0, self

    def for_ids(self, ids: AbstractSet[int], in_sync_replicas: InSyncReplicas) -> SetRules:
        """Return the rules for a group that has these ids now, whatever the configuration names."""
        if not self.follows_ids:
            return self
        least = default_min_in_sync_replicas(ids, in_sync_replicas)
        return attrs.evolve(self, min_in_sync_replicas=least)

    def is_enough(self, members: AbstractSet[int]) -> bool:
        """Return whether puts may be acknowledged by a set of these members."""
        return len(members) >= self.min_in_sync_replicas

    @property
    def least_text(self) -> str:
        """The setting, its value, and where that comes from."""
        default = " (the default in a group of three or more)" if self.follows_ids else ""
        return f"min_in_sync_replicas = {self.min_in_sync_replicas}{default}"

    def is_majority(self, members: AbstractSet[int]) -> bool:
        """Return whether they are more than half of the configured ids."""
        ids = self.configured_ids
        return ids is not None and len(ids & members) * 2 > len(ids)

    def may_remain(self, members: AbstractSet[int]) -> bool:
        """Return whether a set may shrink to these members, however long it takes."""
        return self.is_enough(members) and (self.has_coordinator or self.is_majority(members))

    def may_not_remain_because(self, members: AbstractSet[int]) -> str | None:
        """Return why a set may not shrink to these members; None if it may."""
        if self.may_remain(members):
            return None
        if not self.is_enough(members):
            return f"fewer than {self.least_text} would remain"
        if self.configured_ids is None:
            return "there is no coordinator, and the ids of the group are not configured"
        ids = nodes_text(self.configured_ids)
        return f"there is no coordinator, and no majority of {ids} would remain"

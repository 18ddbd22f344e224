"""How small a SyncStateSet may become.

A set may lose members on its own only as far as this table allows; n is the number of ids that the
configuration names, m is ``min_in_sync_replicas``::

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

SYNC_STATE_TIMEOUT_S: Final = 5.0
MEMBERS_MAX: Final = (
    64  # of a set; more than any group needs, so that peers cannot grow it for ever
)


def nodes_text(ids: AbstractSet[int]) -> str:
    """Return ``node 2``, or ``nodes 2, 3``."""
    return f"node{'s' if len(ids) > 1 else ''} {', '.join(map(str, sorted(ids)))}"


@final
@attrs.frozen(kw_only=True)
class SetRules:
    """What bounds a SyncStateSet; all of it is fixed within an epoch."""

    min_in_sync_replicas: int = 1
    # The ids of the group, the master's included; None: not known.  Others never become members.
    configured_ids: frozenset[int] | None = None
    has_coordinator: bool = False
    sync_state_timeout_s: float = SYNC_STATE_TIMEOUT_S

    def __attrs_post_init__(self) -> None:
        """Assert the ranges, which the configuration has checked."""
        assert self.min_in_sync_replicas >= 1, self
        assert self.sync_state_timeout_s > 0, self

    def is_enough(self, members: AbstractSet[int]) -> bool:
        """Return whether puts may be acknowledged by a set of these members."""
        return len(members) >= self.min_in_sync_replicas

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
            return f"fewer than min_in_sync_replicas = {self.min_in_sync_replicas} would remain"
        if self.configured_ids is None:
            return "there is no coordinator, and the ids of the group are not configured"
        ids = nodes_text(self.configured_ids)
        return f"there is no coordinator, and no majority of {ids} would remain"

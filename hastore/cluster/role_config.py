"""How a node takes part in its group, as its configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

if TYPE_CHECKING:
    from hastore.access.signature import AccessKey


@final
@attrs.frozen(kw_only=True)
class RoleConfig:
    """How a node takes part in elections."""

    ttl_s: int = 10
    priority: int = 0  # among members with equal logs the higher one becomes master
    # The ids of a group whose directories are all empty, which then creates itself; None: a person.
    initial_ids: frozenset[int] | None = None
    acks: str = "all"
    # Whether a master goes on while its coordinator is silent, and all members promise.
    failsafe: bool = True
    advertised_host: str | None = None  # for other nodes and clients; None: as it listens
    access_key: AccessKey | None = None  # signs what members of the group are asked
    version: str = ""

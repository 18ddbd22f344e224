"""How a node takes part in its group, as its configuration says."""

from __future__ import annotations

from typing import final

import attrs


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
    # How long a master cannot store before it asks a member to take over.
    hand_over_after_s: float = 3.0
    min_in_sync_replicas: int | None = None  # None: the default for the group's ids
    advertised_host: str | None = None  # for other nodes and clients; None: as it listens
    key_file: str | None = None  # has the access key that signs what other members are asked
    version: str = ""

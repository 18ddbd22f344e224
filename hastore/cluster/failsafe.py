"""Lets a master go on while its coordinator is silent: all members promise that none stands.

The promises are asked for over requests of their own to the members' client ports.  The coordinator
elects nobody meanwhile who has not stood; so nobody else is master before the oldest promise has
run out.  A node that has not promised joins the set only once the lease lasts as long
(``TermCoordinator``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.broker.request_target import PromiseWish
from hastore.client.admin import AdminClient
from hastore.cluster.node_facts import is_leading
from hastore.errors import HastoreError
from hastore.ha.group_ha_service import GroupHAService
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hastore.access.own_key import OwnKey
    from hastore.access.signature import AccessKey
    from hastore.broker.group_directory import KnownNode
    from hastore.broker.node.group_node import GroupNode
    from hastore.concurrency.lease import Lease
    from hastore.env.interface import Randomness
    from hastore.tls.client_tls import ClientTls

_log = logger("cluster")


@final
@attrs.define(eq=False, kw_only=True)
class Failsafe:
    """A master's way to a later deadline than its lease's."""

    node: GroupNode
    own_id: int
    group: str
    lease: Lease  # whose deadline it prolongs
    ttl_s: int
    randomness: Randomness
    # No, too, while a successor may begin the next epoch at any moment.
    may_ask: Callable[[], bool]
    nodes: Callable[[], Sequence[KnownNode]]  # of the group, as last known
    own_key: OwnKey  # signs what members are asked
    # Until when the node may decide by promises alone, on its own clock.
    promised_deadline: float = attrs.field(default=-math.inf, init=False)
    promised_by: frozenset[int] = attrs.field(default=frozenset(), init=False)
    is_active: bool = attrs.field(default=False, init=False)  # it leads by promises alone
    # Why members did not promise when they were asked last, by id; logged as it changes.
    _refusals: dict[int, str] = attrs.field(factory=dict, init=False)

    async def ask_members(self) -> None:
        """Prolong a leading master's deadline, if all other members promise not to stand."""
        if not self.may_ask():
            return
        master = self.node.role_node
        assert isinstance(master, Master), "it leads"
        assert isinstance(master.ha_service, GroupHAService), "a master of a group"
        group = master.ha_service.sync_state_set
        asked, asked_at = group.needed - {self.own_id}, self.lease.clock()
        addresses = {
            known.node_id: known.client_address for known in self.nodes() if known.node_id in asked
        }
        if addresses.keys() != asked:
            return
        ttl_s, timeout_s = float(self.ttl_s), self.ttl_s / 3 / 2
        with trio.move_on_after(timeout_s):
            refusals = await ask_all(
                addresses,
                PromiseWish(
                    group=self.group,
                    epoch=group.entry.epoch,
                    master_id=self.own_id,
                    ttl_s=ttl_s,
                ),
                nonce=f"{self.randomness.random():.17f}",
                timeout_s=timeout_s,
                access_key=await self.own_key.read(),
                tls=None if self.node.tls is None else self.node.tls.client,
            )
            known, self._refusals = self._refusals, refusals
            is_whole = group.needed - {self.own_id} <= asked
            if not refusals and is_whole and is_leading(self.node, self.lease):
                self.promised_deadline = self.lease.promised(asked_at, ttl_s)
                self.promised_by = asked
                if not self.is_active:
                    _log.warning("failsafe", members=len(asked), ttl_s=self.ttl_s)
                self.is_active = True
                return
            for node_id, reason in refusals.items() - known.items():
                _log.warning("promise_refused", node_id=node_id, reason=reason)


async def ask_all(
    addresses: Mapping[int, tuple[str, int]],
    wish: PromiseWish,
    *,
    nonce: str,
    timeout_s: float,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> dict[int, str]:
    """Ask all of ``addresses`` at the same time; return why not, by the ids of those that refuse.

    Empty: all have promised.  No answer is a refusal.
    """
    refusals: dict[int, str] = {}

    async def ask(node_id: int, address: tuple[str, int]) -> None:
        try:
            async with AdminClient.connect(
                address,
                connect_timeout_s=timeout_s,
                request_timeout_s=timeout_s,
                access_key=access_key,
                tls=tls,
            ) as client:
                await client.ask_promise(
                    group=wish.group,
                    epoch=wish.epoch,
                    master_id=wish.master_id,
                    ttl_s=wish.ttl_s,
                    nonce=nonce,
                )
        except HastoreError as error:
            refusals[node_id] = str(error)

    async with trio.open_nursery() as nursery:
        for node_id, address in sorted(addresses.items()):
            nursery.start_soon(ask, node_id, address)
    return refusals

"""Asks the members of a set for promises, over requests of their own to their client ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hastore.client.admin import AdminClient
from hastore.errors import HastoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.broker.request_target import PromiseWish


async def ask_all(
    addresses: Mapping[int, tuple[str, int]],
    wish: PromiseWish,
    *,
    nonce: str,
    timeout_s: float,
) -> dict[int, str]:
    """Ask all of ``addresses`` at the same time; return why not, by the ids of those that refuse.

    Empty: all have promised.  No answer is a refusal.
    """
    refusals: dict[int, str] = {}

    async def ask(node_id: int, address: tuple[str, int]) -> None:
        try:
            async with AdminClient.connect(
                address, connect_timeout_s=timeout_s, request_timeout_s=timeout_s
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

"""A group whose failover loses acknowledged messages, because a number of acks was enough.

Three of five nodes run, which is a majority, so that none of them leaves the SyncStateSet: node 3
stays in it without the last messages, and their confirm offset stays below them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import attrs
import trio

from hastore.broker.node.group_node import GroupNode
from hastore.quantities import format_address
from tests.support.commands.running import hastore
from tests.support.nodes.group_nodes import HA, group, promote
from tests.support.waiting import eventually

IDS = (1, 2, 3, 4, 5)
KEPT, LOST = 3, 20


@contextlib.asynccontextmanager
async def two_ahead_of_three(tmp_path: Path) -> AsyncIterator[tuple[GroupNode, GroupNode, Path]]:
    """Yield nodes 2 and 3, without a master: LOST messages that were PUT_OK are not on node 3.

    The path is a pattern: the producers' histories.
    """
    ha = attrs.evolve(HA, in_sync_replicas=2)
    async with group(tmp_path, ha=ha, group_ids=IDS) as (one, two, three):
        master = await promote(one, two, three, members={1, 2, 3})
        await send(one, "audit", KEPT, tmp_path)
        await eventually(lambda: two.max_offset == three.max_offset == master.max_offset)
        await three.step_down("a test")
        await send(one, "orders", LOST, tmp_path)
        await eventually(lambda: two.max_offset == master.max_offset)
        await one.step_down("a test")
        await two.step_down("a test")
        assert three.max_offset < two.max_offset
        yield two, three, tmp_path / "history-*.jsonl"


async def send(node: GroupNode, topic: str, count: int, folder: Path) -> None:
    """Send messages with a history; all are PUT_OK."""
    assert node.address is not None
    address = format_address(node.address)
    flags = ["--addr", address, "-n", str(count), "--size", "100"]
    flags += ["--history", str(folder / f"history-{topic}.jsonl")]
    sent = await trio.to_thread.run_sync(partial(hastore, "produce", topic, *flags))
    assert sent.returncode == 0, sent.stderr

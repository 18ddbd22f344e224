"""The end of a node that must not continue."""

from __future__ import annotations

import trio

from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.patience import PROCESS_WITHIN_S

FAIL_STOP = 1
ENDS_WITHIN_S = PROCESS_WITHIN_S


async def fails_stop(world: ProcessWorld, node: ProcessNode, why: str, *or_why: str) -> None:
    """Wait until a disk error has ended a node, and check its exit code and its reason."""
    assert node.process is not None
    begun_s = world._disturb(node)
    code = None
    with trio.move_on_after(ENDS_WITHIN_S):
        code = await node.process.process.wait()
    assert code == FAIL_STOP, (code, node.output())
    assert any(each in node.output() for each in (why, *or_why)), node.output()
    assert "error: unexpected" not in node.output(), node.output()
    world._ended(node, EventKind.KILL, f"{node.name}: stopped: {why}", begun_s, code)

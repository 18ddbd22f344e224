"""51: a topic is spread over two groups of one cluster; one after the other loses its master."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore_scenarios import PutMessageStatus, World, scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_scenarios import Node, Tally
    from hastore_scenarios.judge.history import Operation

_PUTS = 50


@scenario(
    number=51,
    title="Two groups with one topic",
    proves=(
        "while a group replaces its killed master, the other one acknowledges every put; all nodes"
        " name the masters of both to clients, and a consumer that knows one group reads both"
    ),
)
async def two_groups(world: World) -> None:
    """Both are under load; each loses its master once."""
    first = await world.start_group(3, coordinator=1, min_in_sync_replicas=2)
    second = await world.start_group(3, coordinator=1, min_in_sync_replicas=2, name="other")
    async with (
        world.group_load(of=first[0], every_ms=20) as to_first,
        world.group_load(of=second[0], every_ms=20) as to_second,
    ):
        await world.wait_routes(first[0], second[0])
        master = await _replaced(world, first, to_first, meanwhile=to_second, others=second[0])
        await world.wait_routes(master, second[0])
        other = await _replaced(world, second, to_second, meanwhile=to_first, others=master)
        await world.wait_routes(master, other)
    acknowledged = {
        put.key
        for tally in (to_first, to_second)
        for put in tally.operations
        if put.status is PutMessageStatus.PUT_OK
    }
    read = await world.consumed(*first)
    world.expect(
        acknowledged <= read.keys() and max(read.values()) == 1,
        "a consumer that is given the first group's nodes reads all of both groups, once",
        acknowledged=len(acknowledged),
        read=len(read),
    )


async def _replaced(
    world: World, group: Sequence[Node], load: Tally, *, meanwhile: Tally, others: Node
) -> Node:
    """Kill the master of a group; return its successor, once the former one follows it."""
    master = group[0]
    before = len(meanwhile.operations)
    await world.kill(master)
    successor = await world.wait_master(2, of=master)
    await world.wait_until(
        successor,
        "it acknowledges",
        lambda _: sum(_is_ok_of(put, successor) for put in load.operations) > _PUTS,
    )
    told = [put.label for put in meanwhile.operations[before:] if put.completed_s is not None]
    world.expect(
        len(told) > _PUTS and set(told) == {"PUT_OK"},
        "the other group has acknowledged every put meanwhile",
        puts=len(told),
        answers=sorted(set(told)),
    )
    status = await world.status(others)
    world.expect(
        status.role == "SYNC_MASTER", "its master is the same", name=others.name, role=status.role
    )
    await world.restart(master)
    await world.wait_healthy(master)
    return successor


def _is_ok_of(put: Operation, node: Node) -> bool:
    return put.node == node.name and put.status is PutMessageStatus.PUT_OK

"""A member with an empty log that is to take over: it waits for its first file."""

from types import SimpleNamespace

import pytest
import trio

from hastore.broker.node.group_node import GroupNode
from hastore.errors import DiskFullError


class Allocation:
    """The first file of an empty log, which is not there yet."""

    def __init__(self, error=None):
        self.error = error
        self.is_made = False

    async def wait_for_file(self):
        await trio.sleep(1)
        if self.error is not None:
            raise self.error
        self.is_made = True


async def _run(function):
    return function()


def successor(allocation):
    """Return what ``prepare_to_take_over`` needs of a node."""
    queue = SimpleNamespace(files=[], wants_next_file=False)
    slave = SimpleNamespace(
        commit_log=SimpleNamespace(mapped_file_queue=queue),
        allocate_service=allocation,
        keep_reserve=lambda: True,
    )
    return SimpleNamespace(role_node=slave, env=SimpleNamespace(offload=SimpleNamespace(run=_run)))


async def test_a_successor_waits_for_the_first_file_of_an_empty_log(autojump_clock):
    """It asks again and again while the file is wanted: so the node would do nothing else."""
    allocation = Allocation()
    node = successor(allocation)
    await GroupNode.prepare_to_take_over(node)
    assert allocation.is_made
    assert not node.role_node.commit_log.mapped_file_queue.wants_next_file  # not the second one


async def test_a_successor_without_room_for_the_first_file_says_so(autojump_clock):
    """Then its request is void."""
    error = DiskFullError("no space", path="/d", hint="free space")
    with pytest.raises(DiskFullError):
        await GroupNode.prepare_to_take_over(successor(Allocation(error)))

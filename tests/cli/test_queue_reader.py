"""Several queues read together, against a node that goes on writing."""

from types import SimpleNamespace

import attrs
import pytest

from hastore.client.pull_client import PullResult, PullStatus
from hastore_cli.consume.queue_reader import QueueCursor, QueueReader


@attrs.define
class GrowingNode:
    """Each queue is a list of physical offsets; ``grows`` is appended before every answer."""

    queues: list[list[int]]
    grows: int = 0

    async def pull(self, _topic, queue_id, queue_offset, *, count_max, **_):
        queue = self.queues[queue_id]
        last = max(max(queue, default=0) for queue in self.queues)
        queue += range(last + 1, last + 1 + self.grows)
        found = queue[queue_offset : queue_offset + count_max]
        return PullResult(
            status=PullStatus.FOUND if found else PullStatus.NO_NEW_MESSAGE,
            messages=tuple(
                SimpleNamespace(queue_id=queue_id, queue_offset=queue_offset + n, physic_offset=at)
                for n, at in enumerate(found)
            ),
            next_begin_offset=queue_offset + len(found),
            min_offset=0,
            max_offset=len(queue),
            suggested_broker_id=0,
        )


async def read(reader):
    found = []
    while batch := await reader.next_batch():
        found += [message.physic_offset for message in batch]
    return found


@pytest.mark.parametrize("count_max", [1, 2, 100])
async def test_queues_come_merged_up_to_their_ends(count_max):
    """In the order of the log, however few messages one answer holds."""
    queues = [[12, 40, 97], [31, 55, 99], []]
    cursors = [QueueCursor(i, 0, len(queue)) for i, queue in enumerate(queues)]
    reader = QueueReader(GrowingNode(queues), "T", cursors, print, count_max=count_max)
    assert await read(reader) == [12, 31, 40, 55, 97, 99]


@pytest.mark.parametrize("count_max", [3, 100])
async def test_what_comes_while_the_backlog_is_read_is_left_for_later(count_max):
    """A cursor never stands behind its end: who goes on there, or commits it, loses nothing."""
    queues = [[1, 3], [2, 4]]
    cursors = [QueueCursor(i, 0, 2) for i in range(2)]
    reader = QueueReader(GrowingNode(queues, grows=5), "T", cursors, print, count_max=count_max)
    assert await read(reader) == [1, 2, 3, 4]
    assert [cursor.next_offset for cursor in cursors] == [2, 2]
    result = await reader.pull(cursors[0])
    assert result.messages[0].queue_offset == 2

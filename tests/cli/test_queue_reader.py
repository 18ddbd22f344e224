"""Several queues are read together from a node that keeps writing."""

from types import SimpleNamespace

import attrs
import pytest

from hastore.client.pull_client import PullResult, PullStatus
from hastore_cli.consume.queue_reader import QueueCursor, QueueReader


@attrs.define
class GrowingNode:
    """Each queue is a list of physical offsets; every pull first appends ``grows`` more."""

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
async def test_queues_are_merged_in_log_order(count_max):
    """The result does not depend on the number of messages per answer."""
    queues = [[12, 40, 97], [31, 55, 99], []]
    cursors = [QueueCursor(i, 0, len(queue)) for i, queue in enumerate(queues)]
    reader = QueueReader(GrowingNode(queues), "T", cursors, print, count_max=count_max)
    assert await read(reader) == [12, 31, 40, 55, 97, 99]


@pytest.mark.parametrize("count_max", [3, 100])
async def test_messages_that_arrive_during_the_read_are_left(count_max):
    """No cursor passes its end, so a commit or a later pull loses no message."""
    queues = [[1, 3], [2, 4]]
    cursors = [QueueCursor(i, 0, 2) for i in range(2)]
    reader = QueueReader(GrowingNode(queues, grows=5), "T", cursors, print, count_max=count_max)
    assert await read(reader) == [1, 2, 3, 4]
    assert [cursor.next_offset for cursor in cursors] == [2, 2]
    result = await reader.pull(cursors[0])
    assert result.messages[0].queue_offset == 2

"""Reads from a store at once, in this thread; a node does them in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hastore.store.log.cold_read import ReadSteps
    from hastore.store.message_store import MessageStore
    from hastore.store.queue.queue_read import GetMessageResult
    from hastore.store.record.message_filter import TagFilter

T = TypeVar("T")


def run_here(steps: ReadSteps[T]) -> T:
    """Run all steps in this thread; blocks."""
    answer: Any = None
    try:
        while True:
            answer = steps.send(answer).read()
    except StopIteration as stop:
        result: T = stop.value
        return result


def get_message(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    max_count: int = 32,
    max_size: int = 256 * 1024,
    message_filter: TagFilter | None = None,
) -> GetMessageResult:
    """Read messages of a queue."""
    return run_here(
        store.get_message_steps(
            topic,
            queue_id,
            offset,
            max_count=max_count,
            max_size=max_size,
            message_filter=message_filter,
        )
    )


def store_time_of(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """Return the store timestamp (ms) of a message; -1 if there is none."""
    return run_here(store.store_time_steps(topic, queue_id, queue_offset))


def offset_by_time(store: MessageStore, topic: str, queue_id: int, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at or after a time, else the queue's end."""
    return run_here(store.offset_by_time_steps(topic, queue_id, timestamp_ms))

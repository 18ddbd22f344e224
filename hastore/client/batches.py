"""Which messages go as one SEND_BATCH_MESSAGE, and in which order requests leave.

::

    a a b a c b …    messages, each with its queue
    [a a a] [b b] [c]    requests: a batch, a batch, a single message

A broker stores a batch as it would store its messages one after the other, if they have one topic
and queue, no delay, no transaction, and wait for the same.  Any other message goes by itself; so do
those with a number that a batch has once for all, and large ones, for which a batch saves nothing.

A message whose queue the node chooses may come to any queue of its topic.  It is gathered only with
its neighbours of the topic that are in the same run (``Outgoing.pending.queue_id``).

Invariant: the messages of a queue leave in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_INNER_NUM,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_PREPARED,
)
from hastore.topic import RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from hastore.client.send_result import PendingSend
    from hastore.message import Message

# A broker refuses a batch larger than its max_message_size, which is 4 MiB unless set.
BATCH_SIZE_MAX: Final = 64 * 1024
BATCH_COUNT_MAX: Final = 64
BATCHED_SIZE_MAX: Final = 16 * 1024  # of one message, body and properties
_PROPERTIES_SIZE_MAX: Final = 0x7FFF
# What a RocketMQ broker reads from a message of its own, not from a batch's entry.
_SPECIAL: Final = frozenset(
    {
        PROPERTY_DELAY_TIME_LEVEL,
        PROPERTY_INNER_NUM,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELAY_SEC,
        PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TRANSACTION_PREPARED,
    }
)
_FLAGS: Final = range(-(1 << 31), 1 << 31)  # those of a batch's entry


@final
class Outgoing:
    """A message on its way: ``text`` is that of its properties, UNIQ_KEY included.

    None if that is not UTF-8.
    """

    __slots__ = ("message", "new_key", "pending", "text")

    def __init__(
        self, message: Message, pending: PendingSend, new_key: str | None, text: bytes | None
    ) -> None:
        self.message = message
        self.pending = pending
        self.new_key = new_key  # the UNIQ_KEY, if the message has none of its own
        self.text = text

    @property
    def size(self) -> int:
        """Bytes of body and properties."""
        return len(self.message.body) + len(self.text or b"")


@final
class Batches:
    """Gathers messages; ``requests`` are those to send, in their order.

    A batch has at most ``size_max`` bytes of bodies and properties.
    """

    def __init__(self, size_max: int = BATCH_SIZE_MAX) -> None:
        self._size_max = size_max
        self.requests: list[list[Outgoing]] = []
        # Of each topic and queue: the last request, its size, whether its messages wait.
        self._open: dict[str, dict[int, tuple[list[Outgoing], int, bool]]] = {}
        # Of each topic: the run of its last message; None if that has a queue of its own.
        self._runs: dict[str, int | None] = {}

    def add(self, outgoing: Outgoing) -> None:
        """Add a message."""
        pending, size = outgoing.pending, outgoing.size
        queue_id = pending.queue_id
        open_of_topic = self._open.setdefault(pending.topic, {})
        run = queue_id if pending.any_queue else None
        if self._runs.setdefault(pending.topic, run) != run:
            self._runs[pending.topic] = run
            open_of_topic.clear()
        if size > BATCHED_SIZE_MAX or not _is_plain(outgoing):
            open_of_topic.pop(queue_id, None)
            self.requests.append([outgoing])
            return
        waits = outgoing.message.wait_store_msg_ok
        request, size_before, waits_before = open_of_topic.get(queue_id, ([], 0, waits))
        size += size_before
        if size > self._size_max or len(request) == BATCH_COUNT_MAX or waits != waits_before:
            request, size = [], outgoing.size
        if not request:
            self.requests.append(request)
        request.append(outgoing)
        open_of_topic[queue_id] = request, size, waits


def _is_plain(outgoing: Outgoing) -> bool:
    """Return whether a message may be in a batch."""
    message = outgoing.message
    if message.sys_flag or message.reconsume_times or message.born_timestamp_ms is not None:
        return False
    text = outgoing.text
    if text is None or len(text) > _PROPERTIES_SIZE_MAX or message.flag not in _FLAGS:
        return False
    if message.topic.startswith(RETRY_TOPIC_PREFIX):
        return False
    properties = message.properties
    return not properties or _SPECIAL.isdisjoint(properties)

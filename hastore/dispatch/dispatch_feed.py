"""The records that a master has just appended, so that dispatch need not decode them again.

Each append leaves an entry; ReputMessageService takes them in order.  If dispatch falls behind (it
waits for a slave, or for the disk), the feed closes at ``FEED_SIZE_MAX`` entries, or when the texts
in them are too large, and dispatch reads the missing records from the log.

Invariant: while the feed is open every record from ``start_offset`` on has its entry, until taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, final

from hastore.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from hastore.store.record.layout import RECORD_SIZE_MIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastore.message import Message
    from hastore.store.record.append_message_result import AppendMessageResult

FEED_SIZE_MAX: Final = 65_536
FEED_TEXT_SIZE_MAX: Final = 32 * 1024 * 1024  # bytes of memory, of large texts
_LARGE: Final = 256  # characters of one message's texts; ``size_max`` bounds smaller ones
# A record with such texts has at least this size without its body: a character is a byte or more.
_LARGE_SIZE: Final = RECORD_SIZE_MIN + _LARGE

# TAGS, UNIQ_KEY, KEYS, DELAY: the properties that dispatch reads, None where there is none.
DispatchTexts: TypeAlias = "tuple[str | None, str | None, str | None, str | None]"
# Physic offset, size, topic, queue id, queue offset, store timestamp (ms), sysFlag, texts.
DispatchRequest: TypeAlias = "tuple[int, int, str, int, int, int, int, DispatchTexts | None]"


def dispatch_texts(properties: Mapping[str, str]) -> DispatchTexts:
    """Copy the properties that dispatch needs; the producer may change its message later."""
    get = properties.get
    return (
        get(PROPERTY_TAGS),
        get(PROPERTY_UNIQ_KEY),
        get(PROPERTY_KEYS),
        get(PROPERTY_DELAY_TIME_LEVEL),
    )


@final
class DispatchFeed:
    """The requests that wait for dispatch; a closed feed (``requests`` is None) takes none."""

    __slots__ = ("requests", "size_max", "start_offset", "text_size", "text_size_max")

    def __init__(
        self, size_max: int = FEED_SIZE_MAX, text_size_max: int = FEED_TEXT_SIZE_MAX
    ) -> None:
        self.size_max = size_max
        self.text_size_max = text_size_max
        self.text_size = 0  # bytes of large texts in ``requests``
        self.start_offset = 0
        self.requests: list[DispatchRequest] | None = None

    def open(self, start_offset: int) -> None:
        """Begin again, empty, at the log's end."""
        self.start_offset = start_offset
        self.requests = []
        self.text_size = 0

    def covers(self, physic_offset: int) -> bool:
        """Whether all records from an offset on are here."""
        return self.requests is not None and physic_offset >= self.start_offset

    def add(self, message: Message, result: AppendMessageResult) -> None:
        """Add a message that was appended.  A hot path: it runs once a message."""
        requests = self.requests
        if requests is None:
            return
        _, physic_offset, next_offset, queue_offset, _, store_ms, _, _ = result
        properties = message.properties
        texts = dispatch_texts(properties) if properties else None
        requests.append((
            physic_offset, next_offset - physic_offset, message.topic, message.queue_id,
            queue_offset, store_ms, message.sys_flag, texts,
        ))  # fmt: skip
        if texts is not None and next_offset - physic_offset - len(message.body) > _LARGE_SIZE:
            self.text_size += _large_size(texts)
        if len(requests) >= self.size_max or self.text_size > self.text_size_max:
            self._close()

    def add_batch(self, messages: Sequence[Message], result: AppendMessageResult) -> None:
        """Add a batch that was appended."""
        if self.requests is None:
            return
        assert result.batch_offsets is not None
        ends = (*result.batch_offsets[1:], result.next_offset)
        for index, message in enumerate(messages):
            start, size = result.batch_offsets[index], ends[index] - result.batch_offsets[index]
            texts = dispatch_texts(message.properties) if message.properties else None
            self.requests.append((
                start, size, message.topic, message.queue_id,
                result.queue_offset + index, result.store_timestamp_ms, message.sys_flag, texts,
            ))  # fmt: skip
            if texts is not None and size - len(message.body) > _LARGE_SIZE:
                self.text_size += _large_size(texts)
        if len(self.requests) >= self.size_max or self.text_size > self.text_size_max:
            self._close()

    def take(self, count: int, limit: int) -> list[DispatchRequest]:
        """Take up to ``count`` requests of records that end at or before ``limit``."""
        requests = self.requests
        assert requests is not None
        taken = requests[:count]
        while taken and taken[-1][0] + taken[-1][1] > limit:
            taken.pop()
        del requests[: len(taken)]
        if self.text_size:
            for request in taken:
                if request[7] is not None:
                    self.text_size -= _large_size(request[7])
        return taken

    def _close(self) -> None:
        self.requests = None
        self.text_size = 0


def _large_size(texts: DispatchTexts) -> int:
    """Return about how many bytes of memory the texts take; 0 unless they are large."""
    count = size = 0
    for text in texts:
        if text:
            count += len(text)
            size += len(text) if text.isascii() else 4 * len(text)
    return size if count > _LARGE else 0

"""Finds single messages: by id, offset of the log, key, or time; from a node or from files.

::

    id      the storing broker's address and port, and the offset, in hex: 7F000001 00002A9F …
    offset  of the log, where the message begins
    key     one of its KEYS, or its UNIQ_KEY (what clients call the message id); of one topic
    time    T1 <= store time < T2

A node returns what consumers may see, and does not say whether a message that the key may not read
is there.  Files are read whole, without an index: that needs no node and also finds messages that
are not yet confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import HastoreError, RequestFailedError
from hastore.message import StoredMessage
from hastore.store.record.layout import MESSAGE_ID_END
from hastore.store.record.message_codec import address_text, message_id
from hastore.store.tools.log_finding import Finding
from hastore_cli.consume.queue_reader import QueueCursor, QueueReader
from hastore_cli.log.search import CLOCK_SLACK_MS, MessageFilter, message_at, search
from hastore_cli.node.client import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory
    from hastore_cli.app.times import TimeWindow
    from hastore_cli.node.client import NodeClient

KEY_COUNT_MAX: Final = 64  # a broker returns at most so many for one key
_ID_SIZES: Final = {32: 4, 56: 16}  # hex digits → bytes of the address
_FAR_MS: Final = 2**63 - 1


class NotFoundError(HastoreError):
    """There is no such message; the node or the files could be read."""


@attrs.frozen(kw_only=True)
class MessageId:
    """A parsed message id."""

    text: str
    store_host: tuple[str, int]
    physic_offset: int

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse an id.  Raises ValueError that says what one looks like."""
        address_size = _ID_SIZES.get(len(text))
        try:
            if address_size is None:
                raise ValueError
            raw = bytes.fromhex(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a message id of 32 or 56 hex digits") from None
        port, physic_offset = MESSAGE_ID_END.unpack(raw[address_size:])
        host = address_text(raw[:address_size])
        return cls(text=text.upper(), store_host=(host, port), physic_offset=physic_offset)


# -- a node --------------------------------------------------------------------------------------


async def by_offset(node: NodeClient, physic_offset: int) -> StoredMessage:
    """Return the message that begins at an offset of the log.  Raises NotFoundError."""
    try:
        return await node.admin.view_message(physic_offset, raw_bodies=True)
    except RequestFailedError as error:
        raise NotFoundError(
            f"no message that this key may read begins at offset {physic_offset}",
            hint="check that the access key has SUB on its topic, or what is there: hastore log cat"
            f" DIR -n 1 --from-offset {physic_offset}",
        ) from error


async def by_id(node: NodeClient, wanted: MessageId, topic: str | None) -> StoredMessage:
    """Return the message with an id, or with a topic a UNIQ_KEY.  Raises NotFoundError."""
    if topic is not None:
        found = await node.admin.query_message(topic, wanted.text, count_max=1, raw_bodies=True)
        if found:
            return found[0]
    try:
        message = await node.admin.view_message(wanted.physic_offset, raw_bodies=True)
    except RequestFailedError as error:
        raise _no_such_id(wanted, topic) from error
    if message_id(message.store_host, message.physic_offset) != wanted.text:
        raise _no_such_id(wanted, topic)
    return message


def _no_such_id(wanted: MessageId, topic: str | None) -> NotFoundError:
    hint = "a client's id (UNIQ_KEY) can be found in its topic: add -t TOPIC"
    if topic is not None:
        hint = "search the files: hastore log find DIR -k " + wanted.text
    return NotFoundError(f"no message has the id {wanted.text}", hint=hint)


async def by_key(node: NodeClient, topic: str, key: str, window: TimeWindow) -> list[StoredMessage]:
    """Return the messages of a topic with a key, oldest first."""
    found = await node.admin.query_message(
        topic,
        key,
        count_max=KEY_COUNT_MAX,
        begin_ms=window.begin_ms or 0,
        end_ms=_FAR_MS if window.end_ms is None else window.end_ms - 1,
        raw_bodies=True,
    )
    return sorted(found, key=lambda message: message.physic_offset)


async def by_time(
    node: NodeClient, topic: str, window: TimeWindow, on_note: Callable[[str], None]
) -> QueueReader:
    """Return a reader of a topic's messages that were stored in a window or shortly after it."""
    config = await node.topic(topic)

    async def cursor(queue_id: int) -> QueueCursor:
        held = await node.queue_range(topic, queue_id)
        start, end = held.start, held.stop
        if held and window.begin_ms is not None:
            # One earlier: of several in one millisecond RocketMQ may return any.
            start = await node.admin.search_offset(topic, queue_id, window.begin_ms - 1)
        if held and window.end_ms is not None:
            late_ms = window.end_ms + CLOCK_SLACK_MS
            end = max(await node.admin.search_offset(topic, queue_id, late_ms) + 1, start)
        return QueueCursor(queue_id, start, min(end, held.stop))

    def on_moved(queue_id: int, offset: int, next_offset: int) -> None:
        on_note(f"queue {queue_id} does not hold offset {offset}: going on at {next_offset}")

    return QueueReader(node, topic, await gather(cursor, range(config.read_queue_nums)), on_moved)


# -- files ---------------------------------------------------------------------------------------


def by_offset_in_files(disk: Disk, log: LogDirectory, physic_offset: int) -> StoredMessage:
    """Return the message that begins at an offset of the log.  Raises NotFoundError."""
    message = message_at(disk, log, physic_offset)
    if message is None:
        raise NotFoundError(
            f"no intact message begins at offset {physic_offset} of {log.path}",
            hint=f"check what is there: hastore log cat {log.path} -n 1 --from-offset"
            f" {physic_offset}",
        )
    return message


def by_id_in_files(
    disk: Disk,
    log: LogDirectory,
    wanted: MessageId,
    topic: str | None,
    on_progress: Callable[[int], None] | None = None,
) -> StoredMessage:
    """Return the message with an id, or with a topic a UNIQ_KEY.  Raises NotFoundError."""
    message = message_at(disk, log, wanted.physic_offset)
    if message is not None and message_id(message.store_host, message.physic_offset) == wanted.text:
        return message
    if topic is not None:
        fits = MessageFilter(key=wanted.text, topic=topic)
        for found in in_files(disk, log, fits, on_progress):
            return found
    raise _no_such_id(wanted, topic)


def in_files(
    disk: Disk,
    log: LogDirectory,
    wanted: MessageFilter,
    on_progress: Callable[[int], None] | None = None,
    on_damage: Callable[[Finding], None] | None = None,
) -> Iterator[StoredMessage]:
    """Yield the messages that match; calls ``on_damage`` for each unreadable place."""
    for entry in search(disk, log, wanted, on_progress=on_progress):
        if isinstance(entry, StoredMessage):
            yield entry
        elif isinstance(entry, Finding) and on_damage is not None:
            on_damage(entry)

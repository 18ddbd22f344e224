"""Queries for queues and single messages: by offset, time, key or id.

=====================================  ==========================================================
SEARCH_OFFSET_BY_TIMESTAMP (29)        topic queueId timestamp → offset
GET_MAX_OFFSET (30), GET_MIN_OFFSET    topic queueId → offset
GET_EARLIEST_MSG_STORETIME (32)        topic queueId → timestamp, -1 for an empty queue
QUERY_MESSAGE (12)                     topic key maxNum beginTimestamp endTimestamp → records
VIEW_MESSAGE_BY_ID (33)                offset (physical) → one record
=====================================  ==========================================================

Source: RocketMQ 4.9.8 ``AdminBrokerProcessor``, ``QueryMessageProcessor``.

One key at a time is searched, in a thread: if many messages have it, or only its hash, the index
lists millions before the requested time.

Invariant: an answer has at most QUERY_COUNT_MAX records and ``pull_size_max`` bytes (but always one
record), and the unit of its queue names each of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.reply import Later
from hastore.errors import RequestFailedError
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import (
    boolean_field,
    check_text,
    integer_field,
    required_text_field,
)

if TYPE_CHECKING:
    from hastore.broker.pulls.cold_reader import ColdReader
    from hastore.broker.pulls.message_by_offset import MessageByOffset, Place
    from hastore.broker.reply import ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.config import RemotingConfig
    from hastore.env.interface import Offload
    from hastore.store.message_store import MessageStore
    from hastore.wire.remoting_command import RemotingCommand

QUERY_COUNT_MAX: Final = 64  # RocketMQ's maxMsgsNumBatch
UNIQUE_KEY_COUNT: Final = 32  # limit of a query by UNIQ_KEY (defaultQueryMaxNum)
KEY_SIZE_MAX: Final = 32_767  # characters that fit into a record's properties
_UNIQUE_KEY_FIELD: Final = "_UNIQUE_KEY_QUERY"
_TIME_MAX: Final = 2**63 - 1


@final
@attrs.define(eq=False)
class QueryMessageProcessor:
    """Answers queries from ``target``'s store."""

    target: RequestTarget
    config: RemotingConfig
    offload: Offload
    _cold_reader: ColdReader
    _by_offset: MessageByOffset
    _one_query: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @property
    def _store(self) -> MessageStore:
        return self.target.message_store

    def max_offset(self, request: RemotingCommand) -> RemotingCommand:
        """Return the offset of a queue's next message."""
        topic, queue_id = _queue_of(request)
        return _with_offset(request, self._store.max_offset_in_queue(topic, queue_id))

    def min_offset(self, request: RemotingCommand) -> RemotingCommand:
        """Return the offset of a queue's first message."""
        topic, queue_id = _queue_of(request)
        return _with_offset(request, self._store.min_offset_in_queue(topic, queue_id))

    async def search_offset(self, request: RemotingCommand) -> RemotingCommand:
        """Return the offset of the first message stored at a time or later."""
        topic, queue_id = _queue_of(request)
        timestamp_ms = integer_field(request.ext_fields, "timestamp", bits=64)
        steps = self._store.offset_by_time_steps(topic, queue_id, timestamp_ms)
        return _with_offset(request, await self._cold_reader.run(self._store.commit_log, steps))

    async def earliest_store_time(self, request: RemotingCommand) -> RemotingCommand:
        """Return when a queue's first message was stored."""
        topic, queue_id = _queue_of(request)
        store = self._store
        first = store.min_offset_in_queue(topic, queue_id)
        steps = store.store_time_steps(topic, queue_id, first)
        timestamp_ms = await self._cold_reader.run(store.commit_log, steps)
        return request.response(ResponseCode.SUCCESS, ext_fields={"timestamp": str(timestamp_ms)})

    async def query_message(self, request: RemotingCommand) -> RemotingCommand:
        """Return the messages of a topic that carry a key, newest first."""
        fields = request.ext_fields
        topic = required_text_field(fields, "topic")
        key = required_text_field(fields, "key")
        check_text("the topic", topic)
        check_text("the key", key)
        if len(key) > KEY_SIZE_MAX:
            msg = f"the key has {len(key)} characters; at most {KEY_SIZE_MAX} are possible"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        count_max = integer_field(fields, "maxNum", UNIQUE_KEY_COUNT)
        if boolean_field(fields, _UNIQUE_KEY_FIELD):
            count_max = UNIQUE_KEY_COUNT
        query = partial(
            self._store.query_message,
            topic,
            key,
            max_count=min(max(count_max, 1), QUERY_COUNT_MAX),
            begin_ms=max(integer_field(fields, "beginTimestamp", 0, bits=64), 0),
            end_ms=integer_field(fields, "endTimestamp", _TIME_MAX, bits=64),
        )
        async with self._one_query:  # leaves threads to the flushes
            found = await self.offload.run(query)
        size = 0
        taken: list[bytes] = []
        for record in found:
            # A check reads a unit, perhaps from the disk, and units belong to the event loop.
            await trio.lowlevel.checkpoint()
            # The index keeps keys of deleted topics, and of transactions that are not committed.
            if not self._store.is_in_queue(record):
                continue
            size += len(record)
            if taken and size > self.config.pull_size_max:
                break
            taken.append(record)
        if not taken:
            msg = f"no message of topic {topic:.128} has key {key:.128} in that time"
            raise RequestFailedError(msg, code=ResponseCode.QUERY_NOT_FOUND)
        return request.response(
            ResponseCode.SUCCESS, ext_fields=self._index_fields(), body=b"".join(taken)
        )

    def _index_fields(self) -> dict[str, str]:
        """Return the index's end, in time and offset; clients only show it."""
        index_service = self._store.index_service
        end = 0 if index_service is None else index_service.end_physic_offset
        checkpoint = self._store.checkpoint
        return {
            "indexLastUpdateTimestamp": str(checkpoint.index_msg_timestamp),
            "indexLastUpdatePhyoffset": str(end),
        }

    async def view_message(self, request: RemotingCommand, _client: ClientConnection) -> Later:
        """Find the record that begins at a physical offset; the answer to return later reads it.

        So that only a request that gets a record needs room for a large answer.
        """
        place = await self._by_offset.find(request)
        return Later(partial(self._view, request, place))

    async def _view(self, request: RemotingCommand, place: Place) -> RemotingCommand:
        return request.response(ResponseCode.SUCCESS, body=await self._by_offset.read(place))


def _queue_of(request: RemotingCommand) -> tuple[str, int]:
    topic = required_text_field(request.ext_fields, "topic")
    check_text("the topic", topic)
    return topic, integer_field(request.ext_fields, "queueId")


def _with_offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return request.response(ResponseCode.SUCCESS, ext_fields={"offset": str(offset)})

"""Requests to a node: status, routes, topics, groups, offsets, single messages."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

from hastore.client.received_messages import read_all_in_pieces
from hastore.client.remoting_client import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    Asker,
    open_remoting_client,
    request_failed,
)
from hastore.concurrency.turns import with_checkpoints
from hastore.errors import ProtocolError
from hastore.quantities import format_address, read_integer
from hastore.store.tools.group_log import GroupLog, MessageCounts
from hastore.topic import DEFAULT_TOPIC
from hastore.wire import liberal_json
from hastore.wire.config_tables import PERM_READ_WRITE, SubscriptionGroupConfig, TopicConfig
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import integer_field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from hastore.access.signature import AccessKey
    from hastore.message import StoredMessage
    from hastore.tls.client_tls import ClientTls

_QUEUE_ID_MAX: Final = 999_999_999


@final
class AdminClient:
    """A connected admin client, returned by ``AdminClient.connect``.

    Every request raises UnreachableError if no answer comes, RequestFailedError if the node answers
    with an error, and ProtocolError if the answer is malformed.
    """

    def __init__(self, client: Asker) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        address: tuple[str, int],
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        access_key: AccessKey | None = None,
        tls: ClientTls | None = None,
    ) -> AsyncIterator[AdminClient]:
        """Connect to a node while the block runs.  Raises UnreachableError, TlsError."""
        async with open_remoting_client(
            address,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            access_key=access_key,
            tls=tls,
        ) as client:
            yield cls(client)

    async def ha_status(self) -> dict[str, Any]:
        """Return RocketMQ's HARuntimeInfo (907), with a hastore node's status under ``hastore``.

        ``NodeStatus.from_dict(status["hastore"])`` reads the latter.
        """
        response = await self._client.invoke(RequestCode.GET_BROKER_HA_STATUS)
        return liberal_json.loads_object(response.body, "the HA status")

    async def explain(self, last: int) -> dict[str, Any]:
        """Return a hastore master's last decisions about puts, ``hastore.explain/1`` (28101)."""
        response = await self._client.invoke(RequestCode.EXPLAIN_PUTS, {"last": str(last)})
        return liberal_json.loads_object(response.body, "the explanation")

    async def log_digest(self, begin: int, end: int) -> int:
        """Return the CRC32 of the bytes [begin, end) of a hastore node's log (28102)."""
        response = await self._client.invoke(
            RequestCode.LOG_DIGEST, {"from": str(begin), "to": str(end)}
        )
        return integer_field(
            liberal_json.loads_object(response.body, "the digest"), "crc32", bits=64
        )

    async def log_bytes(self, begin: int, end: int, epoch: int) -> bytes:
        """Return the bytes [begin, end) of a master's log, at most 1 MiB (28106).

        Raises RequestFailedError unless the node is the master of ``epoch``, with a verified log.
        """
        response = await self._client.invoke(
            RequestCode.LOG_BYTES, {"from": str(begin), "to": str(end), "epoch": str(epoch)}
        )
        return response.body

    async def group_log(self) -> GroupLog:
        """Return the epochs and the ends of a hastore node's log, and its cuts (28104)."""
        response = await self._client.invoke(RequestCode.GROUP_LOG)
        return GroupLog.from_json(liberal_json.loads_object(response.body, "the group log"))

    async def count_messages(self, begin: int, end: int) -> MessageCounts:
        """Count the messages in [begin, end) of a hastore node's log, by topic (28105).

        ``begin`` is a record's start.
        """
        counts: Counter[str] = Counter()
        unread: list[int] = []
        while begin < end:
            response = await self._client.invoke(
                RequestCode.COUNT_MESSAGES, {"from": str(begin), "to": str(end)}
            )
            body = liberal_json.loads_object(response.body, "the counts")
            messages, next_offset = body.get("messages"), integer_field(body, "next", bits=64)
            if not isinstance(messages, dict) or not begin < next_offset <= end:
                raise ProtocolError(f"the counts from {begin} on go on at {next_offset}")
            for topic in messages:
                counts[topic] += integer_field(messages, topic, bits=64)
            if body.get("unread_from") is not None:
                unread.append(integer_field(body, "unread_from", bits=64))
            begin = next_offset
        return MessageCounts(
            messages=counts, next_offset=end, unread_from=min(unread, default=None)
        )

    async def change_role(
        self,
        *,
        epoch: int,
        master_id: int | None = None,
        master_address: tuple[str, int] | None = None,
        members: Collection[int] | None = None,
    ) -> None:
        """Tell a node of a replica group who is the master of an epoch (1008).

        ``master_id`` and ``master_address``, its client port: None if the group has no master.
        ``members``: of the SyncStateSet that a new master begins with.  Returns when the change has
        begun.
        """
        fields = {"masterEpoch": str(epoch)}
        body = b""
        if master_id is not None and master_address is not None:
            fields |= {
                "masterBrokerId": str(master_id),
                "masterAddress": format_address(master_address),
            }
        if members is not None:
            body = json.dumps({"syncStateSet": sorted(members)}).encode()
        await self._client.invoke(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, fields, body)

    async def ask_promise(
        self, *, group: str, epoch: int, master_id: int, ttl_s: float, nonce: str
    ) -> None:
        """Ask a member of a set not to stand for election for ``ttl_s`` (28103).

        Raises RequestFailedError if it does not promise that.
        """
        response = await self._client.invoke(
            RequestCode.PROMISE_NOT_TO_STAND,
            {
                "group": group,
                "epoch": str(epoch),
                "masterId": str(master_id),
                "ttlMs": str(round(ttl_s * 1000)),
                "nonce": nonce,
            },
        )
        if response.body != nonce.encode():
            raise ProtocolError(f"the answer is to another question: {response.body[:40]!r}")

    async def runtime_info(self) -> dict[str, str]:
        """Return RocketMQ's table of runtime values (28), all text."""
        response = await self._client.invoke(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = liberal_json.loads_object(response.body, "the runtime info").get("table")
        if not isinstance(table, dict):
            msg = "the runtime info has no table"
            raise ProtocolError(msg)
        return {str(key): str(value) for key, value in table.items()}

    async def route(self, topic: str) -> dict[str, Any]:
        """Return a topic's route (105)."""
        response = await self._client.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return liberal_json.loads_object(response.body, "the route")

    # -- topics and groups -----------------------------------------------------------------------

    async def topics(self) -> dict[str, TopicConfig]:
        """Return all topics by name (21)."""
        table = await self._table(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
        return {name: TopicConfig.from_dict(name, table[name]) for name in sorted(table)}

    async def create_topic(
        self,
        topic: str,
        *,
        read_queue_nums: int,
        write_queue_nums: int | None = None,
        perm: int = PERM_READ_WRITE,
    ) -> None:
        """Create or change a topic (17), durably."""
        await self._client.invoke(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": DEFAULT_TOPIC,
                "readQueueNums": str(read_queue_nums),
                "writeQueueNums": str(
                    read_queue_nums if write_queue_nums is None else write_queue_nums
                ),
                "perm": str(perm),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic (215), durably; its messages are not readable any more."""
        await self._client.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all consumer groups by name (201)."""
        table = await self._table(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"
        )
        return {
            name: SubscriptionGroupConfig.from_dict(table[name], name) for name in sorted(table)
        }

    async def create_group(self, group: SubscriptionGroupConfig) -> None:
        """Create or change a consumer group (200), durably."""
        await self._client.invoke(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=json.dumps(group.to_dict()).encode(),
        )

    async def delete_group(self, group: str, *, with_offsets: bool) -> None:
        """Delete a consumer group (207), durably, with its offsets or without."""
        flag = "true" if with_offsets else "false"
        await self._client.invoke(
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            {"groupName": group, "removeOffset": flag, "cleanOffset": flag},
        )

    async def members(self, group: str) -> list[dict[str, Any]]:
        """Return a group's connected clients (203): clientId, clientAddr, language, version."""
        response = await self._client.ask(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        )
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return []
        if response.code != ResponseCode.SUCCESS:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            raise request_failed(self._client.address, code, response)
        rows = liberal_json.loads_object(response.body, "the members").get("connectionSet") or []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            msg = "the members' connectionSet is not a list of objects"
            raise ProtocolError(msg)
        return rows

    # -- offsets ---------------------------------------------------------------------------------

    async def consumer_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return every group's offsets (43): (topic, group) → queue → offset."""
        table = await self._table(RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable")
        offsets = {}
        for key, row in table.items():
            topic, _, group = key.rpartition("@")
            offsets[topic, group] = {
                number: integer_field(row, queue_id, bits=64)
                for queue_id in row
                if (number := read_integer(queue_id)) is not None and 0 <= number <= _QUEUE_ID_MAX
            }
        return offsets

    async def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset in a queue (14), None if it has none."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        return await query_offset(self._client, fields)

    async def update_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's committed offset in a queue (15)."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "commitOffset": str(offset),
        }
        await self._client.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's first message (31)."""
        return await ask_offset(self._client, RequestCode.GET_MIN_OFFSET, topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message (30)."""
        return await ask_offset(self._client, RequestCode.GET_MAX_OFFSET, topic, queue_id)

    async def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time or later (29)."""
        return await ask_offset(
            self._client,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            topic,
            queue_id,
            timestamp=str(timestamp_ms),
        )

    async def earliest_store_time_ms(self, topic: str, queue_id: int) -> int | None:
        """Return when a queue's first message was stored (32); None for an empty queue."""
        response = await self._client.invoke(
            RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": topic, "queueId": str(queue_id)}
        )
        timestamp_ms = integer_field(response.ext_fields, "timestamp", bits=64)
        return None if timestamp_ms < 0 else timestamp_ms

    # -- single messages -------------------------------------------------------------------------

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        raw_bodies: bool = False,
    ) -> list[StoredMessage]:
        """Return a topic's messages with a key (12), newest first.

        Compressed bodies are decoded, unless ``raw_bodies``.
        """
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        }
        response = await self._client.ask(RequestCode.QUERY_MESSAGE, fields)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise request_failed(self._client.address, RequestCode.QUERY_MESSAGE, response)
        return await with_checkpoints(read_all_in_pieces(response.body, raw_bodies=raw_bodies))

    async def view_message(self, physic_offset: int, *, raw_bodies: bool = False) -> StoredMessage:
        """Return the message that begins at a physical offset (33).

        A compressed body is decoded, unless ``raw_bodies``.
        """
        response = await self._client.invoke(
            RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physic_offset)}
        )
        messages = await with_checkpoints(read_all_in_pieces(response.body, raw_bodies=raw_bodies))
        if len(messages) != 1:
            msg = f"{len(messages)} messages in the answer for the one at {physic_offset}"
            raise ProtocolError(msg)
        return messages[0]

    async def _table(self, code: RequestCode, name: str) -> dict[str, dict[str, Any]]:
        response = await self._client.invoke(code)
        table = liberal_json.loads_object(response.body, f"the {name}").get(name) or {}
        if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
            msg = f"the answer's {name} is not an object of objects"
            raise ProtocolError(msg)
        return table


async def ask_offset(
    client: Asker, code: RequestCode, topic: str, queue_id: int, **fields: str
) -> int:
    """Return one offset of a queue.  Raises as ``RemotingClient.invoke`` does."""
    queue = {"topic": topic, "queueId": str(queue_id)}
    response = await client.invoke(code, {**queue, **fields})
    return integer_field(response.ext_fields, "offset", bits=64)


async def query_offset(client: Asker, fields: Mapping[str, str]) -> int | None:
    """Return a group's committed offset, None if it has none."""
    response = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if response.code != ResponseCode.SUCCESS:
        raise request_failed(client.address, RequestCode.QUERY_CONSUMER_OFFSET, response)
    return integer_field(response.ext_fields, "offset", bits=64)

"""Requests of administrators: topics, groups, offsets, decisions, digests of the log.

=============================================  ==================================================
UPDATE_AND_CREATE_TOPIC (17)                   topic readQueueNums writeQueueNums perm …
GET_ALL_TOPIC_CONFIG (21)                      → topics.json
GET_ALL_CONSUMER_OFFSET (43)                   → consumerOffset.json
GET_ALL_DELAY_OFFSET (45)                      → delayOffset.json, over confirmed deliveries only
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)      body: one group's configuration
GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)         → subscriptionGroup.json
DELETE_SUBSCRIPTIONGROUP (207)                 groupName [removeOffset] [cleanOffset]
DELETE_TOPIC_IN_BROKER (215)                   topic
EXPLAIN_PUTS (28101, hastore's own)            last → hastore.explain/1 (``explanation``)
LOG_DIGEST (28102, hastore's own)              from to [epoch group suspect] → crc32 of the log's
                                               bytes there, with an epoch sha256, too
GET_BROKER_EPOCH_CACHE (1007, RocketMQ 5)      → the epochs of a replica group's log
CLEAN_UNUSED_TOPIC (316)                       refused
GROUP_LOG (28104, hastore's own)               [epoch group] → hastore.group-log/1: epochs, ends,
                                               cuts
COUNT_MESSAGES (28105, hastore's own)          from to → messages by topic, and where to go on
LOG_BYTES (28106, hastore's own)               from to epoch [group] → the log's bytes between them
=============================================  ==================================================

Source: RocketMQ 4.9.8 ``AdminBrokerProcessor``.

A topic is deleted in this order: the deletion and the table without it, in one durable write; the
offsets in it; its consume queues.  Its messages stay in the log.  Whatever a disk error or a client
that has gone leaves undone is done by ``run``, and after a crash by the next start.  The deletion
of a topic that never had a message is not recorded, as no record of it could come back.  Deleting
what is not there succeeds, and removes offsets that a crash or a consumer has left.

The answers to 21, 43 and 201 have the ext field ``tableTag``.  A client that sends it back on the
same connection gets no body while the table is unchanged: a slave asks every second.

With an ``epoch`` only the master of that epoch answers, with a ``group`` only a node of that group,
and only if its own log is verified: a member compares its log with that (``log_comparison``).
``suspect`` is an offset where the member has found this log damaged; the record there is checked
here.

Invariant: a topic or group whose request has succeeded is on the disk, or no longer there.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs
import trio

from hastore.broker.group_directory import MASTER_ID
from hastore.broker.groups.topic_config_manager import new_topic_config
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError, RequestFailedError
from hastore.status import BrokerRole, HAProtocol
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.log_rewrite import bad_record_at
from hastore.store.tools.group_log import count_messages, read_group_log
from hastore.topic import OPERATORS_TOPICS, is_system_topic, topic_fault
from hastore.wire import liberal_json
from hastore.wire.config_tables import (
    PERM_READ_WRITE,
    TABLE_TAG,
    DeletedTopic,
    SubscriptionGroupConfig,
)
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import (
    boolean_field,
    check_text,
    integer_field,
    json_response,
    required_text_field,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.request_target import RequestTarget
    from hastore.env.interface import Offload
    from hastore.store.tools.group_log import GroupLog, MessageCounts
    from hastore.wire.pieces import Pieces
    from hastore.wire.remoting_command import RemotingCommand

DIGEST_SIZE_MAX: Final = 4 * 1024 * 1024  # of one request: a read of some milliseconds
BYTES_SIZE_MAX: Final = 1024 * 1024  # of one answer
EPOCH: Final = "epoch"
GROUP: Final = "group"
SUSPECT: Final = "suspect"
RETRY_INTERVAL_S: Final = 1.0
_EXPLAINED_MAX: Final = 1_000
_NO_END: Final = 2**63 - 1  # of the newest epoch, as RocketMQ has it


class _Table(Protocol):
    changes: int

    def to_rows(self) -> dict[str, Any]:
        """Return the content now, as ``dumps_in_pieces`` writes it."""


def _table(request: RemotingCommand, table: _Table) -> Pieces[RemotingCommand]:
    """Return a table, or no body if the client has it already."""
    tag = str(table.changes)
    if request.ext_fields.get(TABLE_TAG) == tag:
        return request.response(ResponseCode.SUCCESS, ext_fields={TABLE_TAG: tag})
    body = yield from liberal_json.dumps_in_pieces(table.to_rows())
    return request.response(ResponseCode.SUCCESS, ext_fields={TABLE_TAG: tag}, body=body)


@final
@attrs.define(eq=False)
class AdminProcessors:
    """Answers administrators; each method takes a request and returns the response."""

    target: RequestTarget
    data: BrokerData
    offload: Offload
    _one_digest: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _one_deletion: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _unfinished: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    async def create_topic(self, request: RemotingCommand) -> RemotingCommand:
        """Make or change a topic."""
        self._check_master()
        fields = request.ext_fields
        topic = required_text_field(fields, "topic")
        if topic not in OPERATORS_TOPICS:
            self._check_is_users(topic, "made or changed")
        config = new_topic_config(
            topic,
            read_queue_nums=integer_field(fields, "readQueueNums"),
            write_queue_nums=integer_field(fields, "writeQueueNums"),
            perm=integer_field(fields, "perm", PERM_READ_WRITE),
        )
        self.data.topics.put(config)
        await self.data.topics_file.persist()
        return request.response(ResponseCode.SUCCESS)

    def _check_is_users(self, topic: str, what: str) -> None:
        """Raise RequestFailedError for an illegal name and for a topic of the broker's own."""
        fault, target = topic_fault(topic), self.target
        if is_system_topic(topic, cluster=target.cluster, broker_name=target.broker_name):
            fault = f"topic {topic} is the broker's own and cannot be {what}"
        if fault is not None:
            raise RequestFailedError(fault, code=ResponseCode.SYSTEM_ERROR)

    async def create_group(self, request: RemotingCommand) -> RemotingCommand:
        """Make or change a group."""
        self._check_master()
        body = liberal_json.loads_object(request.body, "the subscription group")
        check_text("the group", required_text_field(body, "groupName"))
        self.data.groups.put(SubscriptionGroupConfig.from_dict(body))
        await self.data.groups_file.persist()
        return request.response(ResponseCode.SUCCESS)

    async def delete_topic(self, request: RemotingCommand) -> RemotingCommand:
        """Delete a topic that is not the broker's own."""
        self._check_master()
        topic, target = required_text_field(request.ext_fields, "topic"), self.target
        self._check_is_users(topic, "deleted")
        async with self._one_deletion:
            log, topics = target.message_store.commit_log, self.data.topics
            next_offsets, known = log.next_queue_offsets(topic), topics.deleted.get(topic)
            is_there = topic in topics.topics or (
                bool(next_offsets) and (known is None or known.next_offsets != next_offsets)
            )
            if is_there:
                deletion = DeletedTopic(log_offset=log.max_offset, next_offsets=next_offsets)
                self.data.delete_topic(topic, deletion, log_min_offset=log.min_offset)
            else:
                self.data.offsets.forget_topics({topic: None})
            try:
                await self._finish_deletions()
            except BaseException:
                self._unfinished.wakeup()
                raise
        return request.response(ResponseCode.SUCCESS)

    async def _finish_deletions(self) -> None:
        """Write the deletions made so far, and remove the queues.  Raises DiskError."""
        await self.data.topics_file.persist()
        await self.data.offsets_file.persist()
        await self.target.delete_queues(lambda: self.data.topics.deleted)

    async def run(self) -> None:
        """Finish deletions whose request has ended early, until cancelled."""
        while True:
            await self._unfinished.wait_for_running()
            try:
                async with self._one_deletion:
                    await self._finish_deletions()
            except DiskError:
                self._unfinished.wakeup()
                await trio.sleep(RETRY_INTERVAL_S)

    async def delete_group(self, request: RemotingCommand) -> RemotingCommand:
        """Delete a group, with its offsets if the request says so."""
        self._check_master()
        fields = request.ext_fields
        group = required_text_field(fields, "groupName")
        check_text("the group", group)
        # RocketMQ 4 and 5 name the field differently.
        with_offsets = boolean_field(fields, "removeOffset") or boolean_field(fields, "cleanOffset")
        await self.data.delete_group(group, with_offsets=with_offsets)
        return request.response(ResponseCode.SUCCESS)

    def all_topics(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Return all topics."""
        return _table(request, self.data.topics)

    def all_groups(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Return all groups."""
        return _table(request, self.data.groups)

    def all_offsets(self, request: RemotingCommand) -> Pieces[RemotingCommand]:
        """Return all consumer offsets."""
        return _table(request, self.data.offsets)

    def all_delay_offsets(self, request: RemotingCommand) -> RemotingCommand:
        """Return the delay offsets; those of a slave are copies."""
        table = {str(level): offset for level, offset in self.target.delay_offsets().items()}
        return json_response(request, {"offsetTable": table})

    def explain(self, request: RemotingCommand) -> RemotingCommand:
        """Explain the last puts that were not PUT_OK."""
        last = integer_field(request.ext_fields, "last", 20)
        return json_response(request, self.target.explain(min(max(last, 0), _EXPLAINED_MAX)))

    async def log_digest(self, request: RemotingCommand) -> RemotingCommand:
        """Return digests of a range of the log, so that two nodes' bytes can be compared."""
        begin, end = self._range(request, DIGEST_SIZE_MAX)
        is_compared = EPOCH in request.ext_fields
        if is_compared:
            self._check_is_reference(request)

        def digest() -> dict[str, Any]:
            crc, sha256 = 0, hashlib.sha256()
            for data in self._pieces(begin, end):
                crc = zlib.crc32(data, crc)
                if is_compared:
                    sha256.update(data)
            return {"crc32": crc} | ({"sha256": sha256.hexdigest()} if is_compared else {})

        async with self._one_digest:  # leaves threads to the flushes
            digests = await self.offload.run(digest)
            if is_compared and SUSPECT in request.ext_fields:
                await self._check_suspect(integer_field(request.ext_fields, SUSPECT, bits=64))
        return json_response(request, {"from": begin, "to": end} | digests)

    async def _check_suspect(self, physic_offset: int) -> None:
        """Check a record that a member's comparison has found damaged; show it if it is."""
        store = self.target.message_store
        log = store.commit_log
        if not log.min_offset <= physic_offset < log.readable_offset:
            return
        bad = await self.offload.run(
            lambda: bad_record_at(store.env.disk, log.path, log.file_size, physic_offset)
        )
        if bad is not None:
            self.target.found_damage(physic_offset, bad.kind.value)

    async def log_bytes(self, request: RemotingCommand) -> RemotingCommand:
        """Return the bytes of a range of the log, for a member that lacks them."""
        self._check_is_reference(request)
        begin, end = self._range(request, BYTES_SIZE_MAX)
        async with self._one_digest:
            data = await self.offload.run(lambda: b"".join(self._pieces(begin, end)))
        return request.response(ResponseCode.SUCCESS, body=data)

    def _range(self, request: RemotingCommand, size_max: int) -> tuple[int, int]:
        """Return the range that a request names.  Raises RequestFailedError, ProtocolError."""
        begin = integer_field(request.ext_fields, "from", bits=64)
        end = integer_field(request.ext_fields, "to", bits=64)
        log = self.target.message_store.commit_log
        min_offset, max_offset = log.min_offset, log.readable_offset
        if not (min_offset <= begin <= end <= max_offset and end - begin <= size_max):
            msg = (
                f"no answer about the bytes from {begin} to {end}: the log has {min_offset} to"
                f" {max_offset}, and an answer covers at most {size_max} bytes"
            )
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        return begin, end

    def _pieces(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the log's bytes between two offsets; blocks.  Raises RequestFailedError."""
        log = self.target.message_store.commit_log
        while begin < end:
            data = log.read(begin, end - begin)
            if not data:
                msg = f"the bytes at {begin} have just expired"
                raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
            yield data
            begin += len(data)

    def _check_is_reference(self, request: RemotingCommand) -> None:
        """Raise RequestFailedError unless this log is what members compare theirs with.

        It is while this node is the master of the epoch, and of the group if any, that the
        request names, and its own log is verified.
        """
        epoch, status = integer_field(request.ext_fields, EPOCH), self.target.status()
        group, why = request.ext_fields.get(GROUP), None
        if group is not None and group != status.replica_group:
            why = f"this node is not of replica group {group:.100}, but of {status.replica_group}"
        elif not self.target.takes_puts or status.epoch != epoch:
            why = f"this node is not the master of epoch {epoch}, or takes no puts just now"
        elif status.unverified is not None:
            why = "the log of this master is not verified either"
        if why is not None:
            raise RequestFailedError(why, code=ResponseCode.SERVICE_NOT_AVAILABLE)

    async def group_log(self, request: RemotingCommand) -> RemotingCommand:
        """Return the epochs and the ends of this node's log, and what it has cut off."""
        if EPOCH in request.ext_fields:
            self._check_is_reference(request)
        store, status = self.target.message_store, self.target.status()
        group = status.sync_state
        of_what = {GROUP: status.replica_group, EPOCH: status.epoch}

        def read() -> GroupLog:
            return read_group_log(
                store.env.disk,
                store.config.data_dir,
                min_offset=status.min_offset,
                end_offset=status.max_offset,
                confirm_offset=status.confirm_offset if group is None else group.confirm_offset,
            )

        return json_response(request, (await self.offload.run(read)).to_json() | of_what)

    async def epoch_cache(self, request: RemotingCommand) -> RemotingCommand:
        """Return the epochs of a replica group's log, as RocketMQ 5 shows them."""
        status, target = self.target.status(), self.target
        if status.ha_protocol != HAProtocol.AUTOSWITCH.value:
            msg = "this node is in no replica group, so its log has no epochs"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        store = target.message_store
        file = EpochFile(store.env.disk, f"{store.config.data_dir}/{EPOCH_FILE}")
        entries = (await self.offload.run(file.load)).entries
        ends = [*(entry.start_offset for entry in entries[1:]), _NO_END]
        return json_response(
            request,
            {
                "brokerId": MASTER_ID if target.takes_puts else status.node_id,
                "brokerName": target.broker_name,
                "clusterName": target.cluster,
                "epochList": [
                    {"epoch": entry.epoch, "startOffset": entry.start_offset, "endOffset": end}
                    for entry, end in zip(entries, ends, strict=False)
                ],
                "maxOffset": status.max_offset,
            },
        )

    def clean_unused_topic(self, _request: RemotingCommand) -> RemotingCommand:
        """Refuse it: RocketMQ's removes the queues of each topic without a row."""
        msg = (
            "cleanUnusedTopic (316) is not supported: the queues of a topic are removed when the"
            " topic is deleted (215)"
        )
        raise RequestFailedError(msg, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    async def count_messages(self, request: RemotingCommand) -> RemotingCommand:
        """Count the messages in a range of the log, or in its beginning if it is long."""
        begin = integer_field(request.ext_fields, "from", bits=64)
        end = integer_field(request.ext_fields, "to", bits=64)
        store = self.target.message_store
        min_offset, max_offset = store.commit_log.min_offset, store.commit_log.max_offset
        if not min_offset <= begin <= end <= max_offset:
            msg = (
                f"no messages are counted from {begin} to {end}: the log has {min_offset} to"
                f" {max_offset}"
            )
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)

        def count() -> MessageCounts:
            return count_messages(store.env.disk, store.config.data_dir, begin, end)

        async with self._one_digest:  # leaves threads to the flushes
            counted = await self.offload.run(count)
        return json_response(
            request,
            {
                "from": begin,
                "next": counted.next_offset,
                "messages": dict(counted.messages),
                "unread_from": counted.unread_from,
            },
        )

    def _check_master(self) -> None:
        if self.target.role is BrokerRole.SLAVE:
            msg = "this node is a slave; ask its master"
            raise RequestFailedError(msg, code=ResponseCode.SERVICE_NOT_AVAILABLE)

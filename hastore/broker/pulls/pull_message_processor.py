"""PULL_MESSAGE: messages of a queue, sent from the log files without parsing if there is no filter.

The outcome of a read and the answer's code (RocketMQ 4.9.8 ``PullMessageProcessor``):

=======================  =============================  ==========================================
FOUND                    SUCCESS
NO_MATCHED_MESSAGE       PULL_RETRY_IMMEDIATELY         held again if the pull was held
MESSAGE_WAS_REMOVING     PULL_RETRY_IMMEDIATELY
OFFSET_FOUND_NULL        PULL_NOT_FOUND                 held
OFFSET_OVERFLOW_ONE      PULL_NOT_FOUND                 held: the next message will be there
NO_MATCHED_LOGIC_QUEUE   PULL_NOT_FOUND at offset 0     held; PULL_OFFSET_MOVED at others
NO_MESSAGE_IN_QUEUE      the same
OFFSET_TOO_SMALL         PULL_OFFSET_MOVED              from a slave PULL_RETRY_IMMEDIATELY: it
OFFSET_OVERFLOW_BADLY    PULL_OFFSET_MOVED              may be behind, so ask the master
OFFSET_RESET             PULL_OFFSET_MOVED
=======================  =============================  ==========================================

Adjacent records are sent as one piece.  Pieces of at least SENDFILE_SIZE_MIN on average are sent by
sendfile; smaller ones (several topics share the log) are copied into the reply, and so are bytes
that are not flushed, whose pages a socket would hold (``write_socket_service``).  Cold bytes are
copied, or read for a filter, in a thread (``cold_read``).  Measured on loopback, 32 pieces a reply,
copied | by sendfile, in MB/s: 1 KiB 607 | 74, 4 KiB 1261 | 302, 8 KiB 1808 | 564, 16 KiB
714 | 1473, 64 KiB 569 | 4337; one piece: 4 KiB 284 | 206, 16 KiB 910 | 801, 64 KiB 1816 | 2681.

A pull that was held is checked against the permissions again before it is answered: they may have
changed meanwhile.

A pull that waits when its topic is deleted is answered TOPIC_NOT_EXIST at once.  On a slave it goes
on waiting if a client has made the topic and it has no message: its master may have forgotten it.

A pull's commit is refused alone where a quota is used up: the pull is answered.  RocketMQ's has no
limit of offsets that could fail a pull, so stock clients would take the error for the queue's.

Invariant: an answer has the offset to continue at, whatever its code; but for a refusal.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.broker.pulls.pull_request_hold_service import HeldPull, PullRequestHoldService
from hastore.broker.reply import FileRange, Later, ZeroCopyReply
from hastore.errors import QuotaUsedUpError, RequestFailedError
from hastore.status import BrokerRole, GetMessageStatus
from hastore.store.log.cold_read import is_cold
from hastore.store.queue.queue_read import GetMessageResult
from hastore.store.record.message_filter import TagFilter
from hastore.wire.heartbeat_data import MessageModel
from hastore.wire.pull_message import (
    EXPRESSION_TAG,
    PullReply,
    PullRequest,
    pull_reply_head,
    read_pull_request,
)
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.access.permissions import Account
    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.groups.consumer_manager import ConsumerManager
    from hastore.broker.observe.broker_stats import BrokerStats
    from hastore.broker.pulls.cold_reader import ColdReader
    from hastore.broker.reply import Answer, ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.config import RemotingConfig
    from hastore.store.message_store import MessageStore
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.wire.remoting_codes import SerializeType

SENDFILE_SIZE_MIN: Final = 16 * 1024
SHORT_POLLING_S: Final = 1.0  # how long a pull is held without long_polling_enable

_FOUND: Final = ResponseCode.SUCCESS
_NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
_RETRY: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
_MOVED: Final = ResponseCode.PULL_OFFSET_MOVED
_CODES: Final = {
    GetMessageStatus.FOUND: _FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetMessageStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetMessageStatus.OFFSET_TOO_SMALL: _MOVED,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: _NOT_FOUND,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: _NOT_FOUND,
    GetMessageStatus.OFFSET_RESET: _MOVED,
}
_NO_QUEUE: Final = frozenset(
    {GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE}
)


def response_code(status: GetMessageStatus, queue_offset: int, *, is_slave: bool) -> ResponseCode:
    """Return the response code for a read at ``queue_offset``."""
    code = _CODES[status]
    if status in _NO_QUEUE and queue_offset:
        code = _MOVED
    return _RETRY if is_slave and code is _MOVED else code


@attrs.frozen
class _Asked:
    """A validated pull: what is needed to try it, once or again.

    A client may have many of them held, so the rest of the request, its body above all, is not
    kept; nor is the parsed expression, which may be many times as large.
    """

    serialize_type: SerializeType
    opaque: int
    request: PullRequest
    expression: str
    broker_id: int
    account: Account | None  # whose it is; None: nobody's, where no keys are needed


class PullGuard(Protocol):
    """What knows the permissions in force."""

    def account_of(self, request: RemotingCommand) -> Account:
        """Return the account of an admitted request."""

    def refusal_of_held(
        self, request: RemotingCommand, pull: PullRequest, account: Account, peer: tuple[str, int]
    ) -> RemotingCommand | None:
        """Return the answer to a pull that waited, if it may not have messages any more."""


@final
@attrs.define(eq=False)
class PullMessageProcessor:
    """Answers pulls from ``target``'s store; ``holds`` holds those that find nothing."""

    target: RequestTarget
    config: RemotingConfig
    data: BrokerData
    consumers: ConsumerManager
    stats: BrokerStats
    _cold_reader: ColdReader
    guard: PullGuard | None = None  # None: everybody may pull
    holds: PullRequestHoldService = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the hold service."""
        self.holds = PullRequestHoldService(self._wake, self.config.held_pulls_per_owner_max)

    def on_dispatched(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake the pulls that wait for queues that grew."""
        notify = self.holds.notify
        for queue in queues:
            notify(queue.topic, queue.queue_id, queue.max_offset)

    async def pull(self, command: RemotingCommand, client: ClientConnection) -> Answer | None:
        """Answer a pull, or hold it (None).

        Raises ProtocolError for a malformed pull, RequestFailedError for a refused one.
        """
        request = read_pull_request(command.ext_fields)
        asked = _Asked(
            command.serialize_type,
            command.opaque,
            request,
            self._expression(request),
            self._check_group(request),
            None if self.guard is None else self.guard.account_of(command),
        )
        self._check_topic(request)
        self._commit(request, client)
        result = self._reset(request, request.queue_offset, client)
        if result is None:
            result = await self._get(asked, request.queue_offset)
        code = self._code(result.status, request.queue_offset)
        if code is _NOT_FOUND and request.suspend_timeout_ms and not command.is_one_way:
            held = self._held(asked, client, request.queue_offset)
            if self.holds.hold(held):
                return None
        return await self._answer(asked, code, result)

    # -- checks ----------------------------------------------------------------------------------

    def _check_group(self, request: PullRequest) -> int:
        """Return the id of the broker that the group should read from."""
        group = self.data.groups.find(request.group)
        if not group.consume_enable:
            msg = f"group {request.group} is not allowed to consume"
            raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
        if not group.consume_broadcast_enable:
            members = self.consumers.groups.get(request.group)
            if members is not None and members.data.message_model is MessageModel.BROADCASTING:
                msg = f"group {request.group} is not allowed to consume by broadcasting"
                raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
        return group.broker_id

    def _check_topic(self, request: PullRequest) -> None:
        topic = self.data.topics.find(request.topic)
        if topic is None:
            msg = f"topic {request.topic:.128} does not exist"
            raise RequestFailedError(msg, code=ResponseCode.TOPIC_NOT_EXIST)
        if not topic.is_readable:
            msg = f"topic {request.topic} is not readable (perm {topic.perm})"
            raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
        if not 0 <= request.queue_id < topic.read_queue_nums:
            msg = (
                f"queue {request.queue_id} of topic {request.topic} does not exist:"
                f" it has {topic.read_queue_nums}"
            )
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)

    def _expression(self, request: PullRequest) -> str:
        """Return the expression in the request, else that of the group's heartbeat."""
        expression, expression_type = request.subscription, request.expression_type
        if expression is None:
            group = self.consumers.groups.get(request.group)
            subscription = None if group is None else group.subscription(request.topic)
            if subscription is None:
                msg = f"group {request.group:.255} has no subscription to {request.topic:.128}"
                raise RequestFailedError(msg, code=ResponseCode.SUBSCRIPTION_NOT_EXIST)
            if subscription.version < request.subscription_version:
                msg = f"the subscription of group {request.group} is not the latest"
                raise RequestFailedError(msg, code=ResponseCode.SUBSCRIPTION_NOT_LATEST)
            expression, expression_type = subscription.expression, subscription.expression_type
        if expression_type != EXPRESSION_TAG:
            msg = f"this broker filters messages by TAG, not by {expression_type:.20}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        return expression

    def _commit(self, request: PullRequest, client: ClientConnection) -> None:
        group, topic, queue_id = request.group, request.topic, request.queue_id
        if request.commit_offset is None or self.target.role is BrokerRole.SLAVE:
            return
        if self.consumers.is_overtaken(group, topic, queue_id, client):
            return
        owner = client.owner_of_offsets
        try:
            self.data.commit(group, topic, queue_id, request.commit_offset, owner, is_slave=False)
        except QuotaUsedUpError as error:
            self.target.quota_refusals.record(client.peer, error)

    def _reset(
        self, request: PullRequest, queue_offset: int, client: ClientConnection
    ) -> GetMessageResult | None:
        """Return where the group is to begin if its offset was reset to another one."""
        topic, queue_id = request.topic, request.queue_id
        offset = self.consumers.take_reset(request.group, topic, queue_id, client)
        if offset is None or offset == queue_offset:
            return None
        return GetMessageResult(
            status=GetMessageStatus.OFFSET_RESET,
            next_begin_offset=offset,
            min_offset=self._store.min_offset_in_queue(topic, queue_id),
            max_offset=self._store.max_offset_in_queue(topic, queue_id),
        )

    # -- reading ---------------------------------------------------------------------------------

    @property
    def _store(self) -> MessageStore:
        return self.target.message_store

    async def _get(self, asked: _Asked, queue_offset: int) -> GetMessageResult:
        """Read the queue; no checkpoint follows, so that a pull can be held."""
        request, store = asked.request, self._store
        tag_filter = TagFilter.parse(asked.expression)
        return await self._cold_reader.run(
            store.commit_log,
            store.get_message_steps(
                request.topic,
                request.queue_id,
                queue_offset,
                max_count=min(max(request.count_max, 1), self.config.pull_count_max),
                max_size=self.config.pull_size_max,
                message_filter=None if tag_filter.passes_all else tag_filter,
            ),
        )

    def _code(self, status: GetMessageStatus, queue_offset: int) -> ResponseCode:
        is_slave = self.target.role is BrokerRole.SLAVE
        return response_code(status, queue_offset, is_slave=is_slave)

    # -- holding ---------------------------------------------------------------------------------

    def _held(self, asked: _Asked, client: ClientConnection, queue_offset: int) -> HeldPull:
        if self.config.long_polling_enable:
            wanted_ms = min(asked.request.suspend_timeout_ms, self.config.suspend_timeout_max_ms)
            hold_s = wanted_ms / 1000
        else:
            hold_s = SHORT_POLLING_S
        return HeldPull(
            client,
            asked.request.topic,
            asked.request.queue_id,
            queue_offset,
            trio.current_time() + hold_s,
            asked,
        )

    def _wake(self, held: HeldPull) -> None:
        held.client.answer_later(Later(partial(self._again, held)))

    async def _again(self, held: HeldPull) -> Answer | None:
        """Try a held pull; hold it again if it finds nothing and has time left."""
        asked: _Asked = held.tag
        refusal = self._refusal(asked, held.client.peer)  # it takes no reset either
        if refusal is not None:
            return refusal
        result = self._reset(asked.request, held.queue_offset, held.client)
        if result is None:
            result = await self._get(asked, held.queue_offset)
            refusal = self._refusal(asked, held.client.peer)
            if refusal is not None:
                return refusal
        if held.is_deleted:
            return _command(asked).response(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"topic {held.topic} has just been deleted"
            )
        code = self._code(result.status, held.queue_offset)
        goes_on = code is _NOT_FOUND or result.status is GetMessageStatus.NO_MATCHED_MESSAGE
        if goes_on and not held.is_due:
            held.queue_offset = result.next_begin_offset
            if held.queue_offset < result.max_offset:
                # A read checks a limited number of messages; nothing would wake it for the rest.
                await trio.lowlevel.checkpoint()
                self._wake(held)
                return None
            if self.holds.hold(held):
                return None
        return await self._answer(asked, _NOT_FOUND if goes_on else code, result)

    def _refusal(self, asked: _Asked, peer: tuple[str, int]) -> RemotingCommand | None:
        if self.guard is None or asked.account is None:
            return None
        return self.guard.refusal_of_held(_command(asked), asked.request, asked.account, peer)

    # -- answering -------------------------------------------------------------------------------

    async def _answer(self, asked: _Asked, code: ResponseCode, result: GetMessageResult) -> Answer:
        ranges: list[FileRange] = []
        body = b""
        if code is _FOUND:
            if result.records is not None:
                body = b"".join(result.records)
            else:
                ranges, body = await self._body(result.ranges)
                if not ranges and not body:
                    code = _RETRY  # the files expired after the queue was read
        if code is _FOUND:
            self.stats.pulled(asked.request.topic, asked.request.group, len(result.ranges))
        head = pull_reply_head(
            asked.serialize_type,
            asked.opaque,
            code,
            PullReply(
                next_begin_offset=result.next_begin_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                suggested_broker_id=asked.broker_id,
            ),
            remark=result.status.value,
            body_size=len(body) + sum(one.size for one in ranges),
        )
        return ZeroCopyReply(head, tuple(ranges)) if ranges else head + body

    async def _body(self, records: tuple[tuple[int, int], ...]) -> tuple[list[FileRange], bytes]:
        """Return the records as ranges of files, or as bytes; both empty if they expired."""
        log = self._store.commit_log
        pieces = merge_ranges(records, log.file_size)
        ranges = []
        for offset, size in pieces:
            mapped_file = log.mapped_file_queue.find_mapped_file_by_offset(offset)
            if mapped_file is None:
                return [], b""
            ranges.append(FileRange(mapped_file, offset - mapped_file.file_from_offset, size))
        is_flushed = sum(pieces[-1]) <= log.flushed_offset
        if is_flushed and sum(one.size for one in ranges) >= SENDFILE_SIZE_MIN * len(ranges):
            return ranges, b""
        read = partial(_read, ranges)
        if not is_cold(pieces[0][0], log.max_offset):
            return [], read()
        with contextlib.ExitStack() as stack:
            for one in ranges:
                stack.enter_context(one.mapped_file.held())
            return [], await self._cold_reader.in_thread(read)


def _command(asked: _Asked) -> RemotingCommand:
    """Return what is left of the request, for an answer."""
    return RemotingCommand(
        code=RequestCode.PULL_MESSAGE, opaque=asked.opaque, serialize_type=asked.serialize_type
    )


def _read(ranges: list[FileRange]) -> bytes:
    return b"".join([one.mapped_file.disk_file.pread(one.size, one.position) for one in ranges])


def merge_ranges(records: Iterable[tuple[int, int]], file_size: int) -> list[tuple[int, int]]:
    """Join the (offset, size) of adjacent records in one file."""
    pieces: list[tuple[int, int]] = []
    end = -1
    for offset, size in records:
        if offset == end and offset % file_size:
            begin, size_before = pieces[-1]
            pieces[-1] = begin, size_before + size
        else:
            pieces.append((offset, size))
        end = offset + size
    return pieces

"""Replies to request messages (324, 325): each is pushed to the client that has sent the request.

::

    requester ─ send, REPLY_TO_CLIENT=ID ─► topic ─► consumer ─ 324 or 325, REPLY_TO_CLIENT=ID ─┐
       ▲                                                                                        │
       └── 326, PUSH_REPLY_TIME ── the connection of the producer with client id ID ◄───────────┘
       └── 0 ─► the answer to the reply: 0 with msgId 0; any other, or none: SYSTEM_ERROR

A reply has the fields of a send in the long (324) or the short form (325), and is checked as one,
but not stored: RocketMQ stores it unless ``storeReplyMessageEnable`` is false, and nothing reads it
there.  Whoever knows a client id can push to it, so the pushes of one owner are counted
(``hastore.broker.quotas``).  Source: RocketMQ 4.9.8 ``ReplyMessageProcessor``.

Invariants: the answer is a success exactly if the requester has answered so; of a reply that has
been pushed neither the fields nor the body is kept.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.quotas import Quota
from hastore.broker.reply import ready
from hastore.concurrency.tcp import describe
from hastore.errors import RequestFailedError
from hastore.message import PROPERTY_PUSH_REPLY_TIME, PROPERTY_REPLY_TO_CLIENT
from hastore.status import BrokerRole
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import read_message, whole_send_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.broker.client_requests import ClientRequests
    from hastore.broker.groups.producer_manager import ProducerManager
    from hastore.broker.puts.send_message_processor import SendMessageProcessor
    from hastore.broker.reply import ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.config import RemotingConfig
    from hastore.env.interface import WallClock

# In each answer, as RocketMQ's: the region is its default, and producers may send traces.
_ANSWER_FIELDS: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@final
@attrs.define(eq=False)
class ReplyMessageProcessor:
    """Pushes replies to the clients that wait for them."""

    target: RequestTarget
    config: RemotingConfig
    sends: SendMessageProcessor
    producers: ProducerManager
    client_requests: ClientRequests
    clock: WallClock
    _pushes: set[int] = attrs.field(factory=set, init=False)  # without an answer
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    _quota: Quota[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the quota of pushes."""
        self._quota = Quota(
            "pushed replies without an answer",
            "pushed_replies_per_owner_max",
            self.config.pushed_replies_per_owner_max,
            self._pushes.__contains__,
            "pushed_replies_per_minute_max",
            self.config.pushed_replies_per_minute_max,
        )

    async def push(
        self, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand | None:
        """Push a reply; return its refusal, or None if its answer follows that of the requester."""
        if self.target.role is BrokerRole.SLAVE:
            msg = "this node is a slave; send to its master"
            raise RequestFailedError(msg, code=ResponseCode.SERVICE_NOT_AVAILABLE)
        message = read_message(request, client.peer)
        queue_id = self.sends.queue_of_reply(message, client)
        client_id = (message.properties or {}).get(PROPERTY_REPLY_TO_CLIENT)
        if not client_id:
            fault = f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
            return _refused(request, fault)
        requester = self.producers.find(client_id)
        if requester is None:
            fault = f"push reply message fail, channel of <{client_id:.255}> not found."
            return _refused(request, fault)
        number = next(self._numbers)
        self._quota.take(client.owner, number, trio.current_time())
        self._pushes.add(number)
        kept, fault = request.without_content(), f"push reply message to {client_id:.255}fail."

        def done(answer: RemotingCommand | None) -> None:
            self._pushes.remove(number)
            self._quota.release(number)
            if kept.is_one_way:
                return
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                fields = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
                response = kept.response(
                    ResponseCode.SUCCESS, ext_fields={**_ANSWER_FIELDS, **fields}
                )
            else:
                response = _refused(kept, fault)
            client.answer_later(ready(response))

        self.client_requests.ask(requester, self._pushed(request, client), done)
        return None

    def _pushed(self, request: RemotingCommand, client: ClientConnection) -> RemotingCommand:
        """Return the request to the requester; the body is unchanged, also a compressed one."""
        now_ms = self.clock.now_ms()
        fields = whole_send_fields(request.ext_fields)
        text = fields.get("properties", "").removesuffix("\x02")
        fields["properties"] = f"{text}\x02{PROPERTY_PUSH_REPLY_TIME}\x01{now_ms}\x02"
        fields["bornHost"] = describe(client.peer)
        fields["storeHost"] = describe(client.local_address)
        fields["storeTimestamp"] = str(now_ms)
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return RemotingCommand(code=code, ext_fields=fields, body=request.body)


def _refused(request: RemotingCommand, remark: str) -> RemotingCommand:
    return request.response(ResponseCode.SYSTEM_ERROR, remark=remark, ext_fields=_ANSWER_FIELDS)

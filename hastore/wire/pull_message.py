"""PULL_MESSAGE (11): the request's ext fields and the reply's.

::

    request   consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset
              suspendTimeoutMillis subVersion [subscription] [expressionType]
    sysFlag   1 commit offset | 2 suspend | 4 subscription | 8 class filter | 16 lite pull
    reply     suggestWhichBrokerId nextBeginOffset minOffset maxOffset
              body: records as stored in the log, back to back

Source: RocketMQ 4.9.8 ``PullMessageRequestHeader``, ``PullMessageResponseHeader``, ``PullSysFlag``.

Invariant: reading returns numbers that fit their fields and UTF-8 texts, or raises ProtocolError.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as _quote
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.errors import ProtocolError
from hastore.wire.remoting_codes import (
    FLAG_RESPONSE,
    LANGUAGE,
    PROTOCOL_VERSION,
    ResponseCode,
    SerializeType,
)
from hastore.wire.remoting_command import (
    NAME_SIZE_MAX,
    RemotingCommand,
    check_text,
    frame_head,
    integer_field,
    required_text_field,
    text_field,
)
from hastore.wire.rocketmq_header import encode_rocketmq_header

if TYPE_CHECKING:
    from collections.abc import Mapping

FLAG_COMMIT_OFFSET: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4

EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SIZE_MAX: Final = 4_096  # characters of a tag expression
MASTER_ID: Final = 0


@attrs.frozen(kw_only=True)
class PullRequest:
    """A consumer's request.

    ``subscription`` None: the one in its group's heartbeat.  ``commit_offset`` None: nothing to
    commit.  ``suspend_timeout_ms`` 0: answer at once.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    count_max: int
    commit_offset: int | None = None
    suspend_timeout_ms: int = 0
    subscription: str | None = None
    expression_type: str = EXPRESSION_TAG
    subscription_version: int = 0


@attrs.frozen(kw_only=True)
class PullReply:
    """The fields of a reply, without its body."""

    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = MASTER_ID


# -- requests ------------------------------------------------------------------------------------


def read_pull_request(fields: Mapping[str, Any]) -> PullRequest:
    """Read a request's ext fields.  Raises ProtocolError."""
    sys_flag = integer_field(fields, "sysFlag", 0)
    commit_offset = integer_field(fields, "commitOffset", -1, bits=64)
    suspend_ms = integer_field(fields, "suspendTimeoutMillis", 0, bits=64)
    subscription = None
    if sys_flag & FLAG_SUBSCRIPTION:
        subscription = text_field(fields, "subscription") or ""
        if len(subscription) > EXPRESSION_SIZE_MAX:
            msg = f"a subscription of {len(subscription)} characters; at most {EXPRESSION_SIZE_MAX}"
            raise ProtocolError(msg)
        check_text("the subscription", subscription)
    group = required_text_field(fields, "consumerGroup")
    topic = required_text_field(fields, "topic")
    for what, name in ("the group", group), ("the topic", topic):
        if len(name) > NAME_SIZE_MAX:
            msg = f"{what} has {len(name)} characters; at most {NAME_SIZE_MAX}"
            raise ProtocolError(msg)
        check_text(what, name)
    return PullRequest(
        group=group,
        topic=topic,
        queue_id=integer_field(fields, "queueId"),
        queue_offset=integer_field(fields, "queueOffset", bits=64),
        count_max=integer_field(fields, "maxMsgNums"),
        commit_offset=commit_offset
        if sys_flag & FLAG_COMMIT_OFFSET and commit_offset >= 0
        else None,
        suspend_timeout_ms=max(suspend_ms, 0) if sys_flag & FLAG_SUSPEND else 0,
        subscription=subscription,
        expression_type=text_field(fields, "expressionType") or EXPRESSION_TAG,
        subscription_version=integer_field(fields, "subVersion", 0, bits=64),
    )


def write_pull_fields(request: PullRequest) -> dict[str, str]:
    """Return a request's ext fields."""
    sys_flag = 0
    fields = {
        "consumerGroup": request.group,
        "topic": request.topic,
        "queueId": str(request.queue_id),
        "queueOffset": str(request.queue_offset),
        "maxMsgNums": str(request.count_max),
        "commitOffset": str(request.commit_offset or 0),
        "suspendTimeoutMillis": str(request.suspend_timeout_ms),
        "subVersion": str(request.subscription_version),
        "expressionType": request.expression_type,
    }
    if request.commit_offset is not None:
        sys_flag |= FLAG_COMMIT_OFFSET
    if request.suspend_timeout_ms:
        sys_flag |= FLAG_SUSPEND
    if request.subscription is not None:
        sys_flag |= FLAG_SUBSCRIPTION
        fields["subscription"] = request.subscription
    fields["sysFlag"] = str(sys_flag)
    return fields


# -- replies -------------------------------------------------------------------------------------


def read_pull_reply(fields: Mapping[str, Any]) -> PullReply:
    """Read a reply's ext fields.  Raises ProtocolError."""
    return PullReply(
        next_begin_offset=integer_field(fields, "nextBeginOffset", bits=64),
        min_offset=integer_field(fields, "minOffset", bits=64),
        max_offset=integer_field(fields, "maxOffset", bits=64),
        suggested_broker_id=integer_field(fields, "suggestWhichBrokerId", MASTER_ID, bits=64),
    )


def write_reply_fields(reply: PullReply) -> dict[str, str]:
    """Return a reply's ext fields."""
    return {
        "suggestWhichBrokerId": str(reply.suggested_broker_id),
        "nextBeginOffset": str(reply.next_begin_offset),
        "minOffset": str(reply.min_offset),
        "maxOffset": str(reply.max_offset),
    }


def pull_reply_head(
    serialize_type: SerializeType,
    opaque: int,
    code: ResponseCode,
    reply: PullReply,
    *,
    remark: str,
    body_size: int,
) -> bytes:
    """Return a reply's frame without its body, which is sent separately."""
    if serialize_type is SerializeType.JSON:
        header = (
            f'{{"code":{int(code)},"extFields":{{'
            f'"suggestWhichBrokerId":"{reply.suggested_broker_id}",'
            f'"nextBeginOffset":"{reply.next_begin_offset}","minOffset":"{reply.min_offset}",'
            f'"maxOffset":"{reply.max_offset}"}},"flag":1,"language":"{LANGUAGE}",'
            f'"opaque":{opaque},"remark":{_quote(remark)},"serializeTypeCurrentRPC":"JSON",'
            f'"version":{PROTOCOL_VERSION}}}'
        ).encode()
    else:
        header = encode_rocketmq_header(
            RemotingCommand(
                code=code,
                opaque=opaque,
                flag=FLAG_RESPONSE,
                remark=remark,
                ext_fields=write_reply_fields(reply),
            )
        )
    return frame_head(serialize_type, header, body_size)

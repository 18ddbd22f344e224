"""How large a request of each code may be: checked by the reader before it parses a body.

::

    code                      header at most      body at most
    sends 10 36 310 320 …     128 KiB             the largest message (a batch: twice that)
    lists 34 41 42            64 KiB              1 MiB
    a client's answers        64 KiB              1 MiB
    all others                64 KiB              64 KiB

A header above 64 KiB belongs to a send only if it begins with a send's code, where all of
RocketMQ's clients write it.  One JSON text of 64 KiB is parsed in some 1.2 ms, which is why no
other header may have more.  The body of a request above its limit is skipped, never kept.

Every code that the client port serves has a row; the tests fail for one without.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final, assert_never, final

import attrs

from hastore.errors import FrameTooLargeError
from hastore.wire.remoting_codes import RequestCode, SerializeType
from hastore.wire.remoting_command import HEADER_SIZE_MAX
from hastore.wire.send_message import is_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.wire.remoting_command import RemotingCommand

SMALL_SIZE_MAX: Final = 64 * 1024
LIST_SIZE_MAX: Final = 1024 * 1024
_BEGIN_SIZE: Final = 64  # of a header, in which a JSON header above SMALL_SIZE_MAX has its code
_CODE: Final = re.compile(rb'\s*\{\s*"code"\s*:\s*"?([0-9]{1,5})(?![0-9])')


class BodyKind(enum.Enum):
    """What the body of a request has."""

    SMALL = "at most a few names"
    LIST = "a list of names, as JSON"
    MESSAGE = "a message or a batch of them"


BODY_KINDS: Final[Mapping[int, BodyKind]] = {
    RequestCode.SEND_MESSAGE: BodyKind.MESSAGE,
    RequestCode.SEND_MESSAGE_V2: BodyKind.MESSAGE,
    RequestCode.SEND_BATCH_MESSAGE: BodyKind.MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK: BodyKind.MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE: BodyKind.MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: BodyKind.MESSAGE,
    RequestCode.HEART_BEAT: BodyKind.LIST,
    RequestCode.LOCK_BATCH_MQ: BodyKind.LIST,
    RequestCode.UNLOCK_BATCH_MQ: BodyKind.LIST,
    RequestCode.PULL_MESSAGE: BodyKind.SMALL,
    RequestCode.QUERY_MESSAGE: BodyKind.SMALL,
    RequestCode.QUERY_CONSUMER_OFFSET: BodyKind.SMALL,
    RequestCode.UPDATE_CONSUMER_OFFSET: BodyKind.SMALL,
    RequestCode.UPDATE_AND_CREATE_TOPIC: BodyKind.SMALL,
    RequestCode.GET_ALL_TOPIC_CONFIG: BodyKind.SMALL,
    RequestCode.GET_BROKER_RUNTIME_INFO: BodyKind.SMALL,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: BodyKind.SMALL,
    RequestCode.GET_MAX_OFFSET: BodyKind.SMALL,
    RequestCode.GET_MIN_OFFSET: BodyKind.SMALL,
    RequestCode.GET_EARLIEST_MSG_STORETIME: BodyKind.SMALL,
    RequestCode.VIEW_MESSAGE_BY_ID: BodyKind.SMALL,
    RequestCode.UNREGISTER_CLIENT: BodyKind.SMALL,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: BodyKind.SMALL,
    RequestCode.GET_ALL_CONSUMER_OFFSET: BodyKind.SMALL,
    RequestCode.GET_ALL_DELAY_OFFSET: BodyKind.SMALL,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: BodyKind.SMALL,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: BodyKind.SMALL,
    RequestCode.DELETE_TOPIC_IN_BROKER: BodyKind.SMALL,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: BodyKind.SMALL,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: BodyKind.SMALL,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: BodyKind.SMALL,
    RequestCode.GET_TOPIC_STATS_INFO: BodyKind.SMALL,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: BodyKind.SMALL,
    RequestCode.GET_CONSUME_STATS: BodyKind.SMALL,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: BodyKind.SMALL,
    RequestCode.QUERY_CONSUME_TIME_SPAN: BodyKind.SMALL,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: BodyKind.SMALL,
    RequestCode.VIEW_BROKER_STATS_DATA: BodyKind.SMALL,
    RequestCode.GET_BROKER_CONSUME_STATS: BodyKind.SMALL,
    RequestCode.UPDATE_BROKER_CONFIG: BodyKind.SMALL,
    RequestCode.GET_BROKER_CONFIG: BodyKind.SMALL,
    RequestCode.CLEAN_UNUSED_TOPIC: BodyKind.SMALL,
    RequestCode.GET_BROKER_EPOCH_CACHE: BodyKind.SMALL,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: BodyKind.SMALL,
    RequestCode.GET_CONSUMER_RUNNING_INFO: BodyKind.SMALL,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: BodyKind.SMALL,
    RequestCode.GET_BROKER_HA_STATUS: BodyKind.SMALL,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: BodyKind.SMALL,
    RequestCode.EXPLAIN_PUTS: BodyKind.SMALL,
    RequestCode.LOG_DIGEST: BodyKind.SMALL,
    RequestCode.PROMISE_NOT_TO_STAND: BodyKind.SMALL,
    RequestCode.GROUP_LOG: BodyKind.SMALL,
    RequestCode.COUNT_MESSAGES: BodyKind.SMALL,
    RequestCode.LOG_BYTES: BodyKind.SMALL,
}


def kind_of(code: int) -> BodyKind:
    """Return what the body of a request has; of an unknown one a few names."""
    return BODY_KINDS.get(code, BodyKind.SMALL)


def check_header_begin(header_size: int, serialize_type: int, begin: bytes) -> None:
    """Raise FrameTooLargeError for a header above what its code may have.

    ``begin`` is its first bytes, as many as there are; with fewer than 64 of a longer header the
    code may be missing yet, and nothing is raised.
    """
    if header_size <= SMALL_SIZE_MAX or len(begin) < min(_BEGIN_SIZE, header_size):
        return
    code = None
    if serialize_type == SerializeType.ROCKETMQ:
        code = int.from_bytes(begin[:2], "big", signed=True)
    elif (match := _CODE.match(begin[:_BEGIN_SIZE])) is not None:
        code = int(match[1])
    if code is None or kind_of(code) is not BodyKind.MESSAGE:
        what = "request type unknown" if code is None else f"request type {code}"
        msg = (
            f"a header of {header_size} bytes ({what}); at most {SMALL_SIZE_MAX} are taken, of a"
            f" send that begins with its code {HEADER_SIZE_MAX}"
        )
        raise FrameTooLargeError(msg)


@final
@attrs.frozen
class RequestSizes:
    """The limits of one client port; ``message_size_max`` is the store's largest body."""

    message_size_max: int

    def fault(self, request: RemotingCommand, header_size: int, body_size: int) -> str | None:
        """Return why a request is refused for its size; None for one that may come.

        Its body need not be there.  A batch's body has the heads and properties of its messages,
        too, and may have twice a message's bytes.
        """
        code = request.code
        kind = BodyKind.LIST if request.is_response else kind_of(code)
        if kind is not BodyKind.MESSAGE and header_size > SMALL_SIZE_MAX:
            return f"request type {code}: a header of {header_size} bytes; at most {SMALL_SIZE_MAX}"
        match kind:
            case BodyKind.SMALL:
                size_max = SMALL_SIZE_MAX
            case BodyKind.LIST:
                size_max = LIST_SIZE_MAX
            case BodyKind.MESSAGE:
                what, size_max = "message", self.message_size_max
                if is_batch(request):
                    what, size_max = "batch", 2 * size_max
                if body_size > size_max:
                    return (
                        f"the {what} is larger than max_message_size: {body_size} bytes,"
                        f" at most {size_max}"
                    )
            case _:
                assert_never(kind)
        if body_size > size_max:
            return f"request type {code}: a body of {body_size} bytes; at most {size_max}"
        return None

"""One pull: a request for messages of a queue, and its answer as a value."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.client.received_messages import ReceivedMessages, read_in_pieces
from hastore.client.remoting_client import request_failed
from hastore.concurrency.turns import with_checkpoints
from hastore.wire.pull_message import read_pull_reply, write_pull_fields
from hastore.wire.remoting_codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from hastore.client.remoting_client import Asker
    from hastore.message import StoredMessage
    from hastore.wire.pull_message import PullRequest


# The name under which a consumer without a group pulls; it commits nothing.
NO_GROUP: Final = "hastore-reader"


class PullStatus(enum.Enum):
    """The outcome of a pull."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # there is none yet, after any wait
    RETRY_NOW = "RETRY_NOW"  # none matched the filter so far; there may be more
    OFFSET_MOVED = "OFFSET_MOVED"  # the queue does not hold that offset (any more, or yet)


_STATUSES: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.RETRY_NOW,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_MOVED,
}


@final
@attrs.frozen(kw_only=True)
class PullResult:
    """A node's answer.

    ``next_begin_offset`` is the offset to pull next: that of the first message that was left out
    because the bodies before it are too large, if there is one.  Where that message's own offset is
    outside the answer's range, none is left out: they stay compressed.  The queue holds
    [``min_offset``, ``max_offset``).
    """

    status: PullStatus
    messages: tuple[StoredMessage, ...]
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


async def pull(client: Asker, request: PullRequest, *, raw_bodies: bool = False) -> PullResult:
    """Return the answer to one pull; with ``raw_bodies`` compressed bodies stay compressed.

    Raises UnreachableError if none comes, RequestFailedError if the node refuses, ProtocolError if
    the answer is malformed.
    """
    response = await client.ask(RequestCode.PULL_MESSAGE, write_pull_fields(request))
    status = _STATUSES.get(response.code)
    if status is None:
        raise request_failed(client.address, RequestCode.PULL_MESSAGE, response)
    reply = read_pull_reply(response.ext_fields)
    received = ReceivedMessages([], [])
    if status is PullStatus.FOUND:
        work = read_in_pieces(response.body, raw_bodies=raw_bodies)
        received = await with_checkpoints(work)
    next_offset = reply.next_begin_offset
    messages = received.messages
    if received.left:
        left_offset = received.left[0].queue_offset
        # A stock broker may answer with records of another queue (LMQ, static topics, a stale
        # unit), whose offsets are no places in this one.
        if request.queue_offset < left_offset < next_offset:
            next_offset = left_offset
        else:
            messages = received.all
    return PullResult(
        status=status,
        messages=tuple(messages),
        next_begin_offset=next_offset,
        min_offset=reply.min_offset,
        max_offset=reply.max_offset,
        suggested_broker_id=reply.suggested_broker_id,
    )

"""The outcome of a sent message: a status, or unknown.

A node's answer becomes a SendResult, whose status says whether the message is stored.  Without an
answer the outcome is unknown (the message may be in the log, once): ``UnknownOutcomeError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, final

from hastore.client.access import access_denied, is_denied
from hastore.client.pending_request import PendingRequest
from hastore.errors import ProtocolError, RequestFailedError, UnknownOutcomeError
from hastore.status import PutMessageStatus
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import integer_field, text_field
from hastore.wire.send_message import PUT_STATUS_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.wire.remoting_command import RemotingCommand
    from hastore.wire.usual_frames import OkReply

_STATUSES: Final[dict[int, PutMessageStatus]] = {
    ResponseCode.SUCCESS: PutMessageStatus.PUT_OK,
    ResponseCode.SYSTEM_ERROR: PutMessageStatus.UNKNOWN_ERROR,
    ResponseCode.SYSTEM_BUSY: PutMessageStatus.OS_PAGE_CACHE_BUSY,
    ResponseCode.FLUSH_DISK_TIMEOUT: PutMessageStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: PutMessageStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.MESSAGE_ILLEGAL: PutMessageStatus.MESSAGE_ILLEGAL,
    ResponseCode.SERVICE_NOT_AVAILABLE: PutMessageStatus.SERVICE_NOT_AVAILABLE,
}
_PUT_OK: Final = PutMessageStatus.PUT_OK
_new_tuple: Final = tuple.__new__
_NAMES: Final = {status.value: status for status in PutMessageStatus}
_MESSAGE_ID_OFFSET_DIGITS: Final = 16


class SendResult(NamedTuple):
    """A node's answer to one message or batch.  A NamedTuple: one is made for every message.

    ``queue_offset`` (of the first message) and ``message_id`` (RocketMQ's offsetMsgId; a batch's
    joined by commas) are None if nothing was stored.  ``unique_key`` is the message's UNIQ_KEY,
    None for a batch.  ``reason`` is the node's remark.
    """

    status: PutMessageStatus
    topic: str
    queue_id: int
    queue_offset: int | None
    message_id: str | None
    unique_key: str | None
    reason: str | None

    @property
    def ok(self) -> bool:
        """Whether the status is PUT_OK."""
        return self.status is PutMessageStatus.PUT_OK

    @property
    def physic_offset(self) -> int | None:
        """Where the (first) record begins in the log, according to ``message_id``."""
        if self.message_id is None:
            return None
        return int(self.message_id.partition(",")[0][-_MESSAGE_ID_OFFSET_DIGITS:], 16)


@final
class PendingSend(PendingRequest):
    """A message in flight: ``await wait()``, or ``result()`` once ``is_done``.

    The answer to a batch (``PendingBatch``) answers each of its messages.
    """

    __slots__ = ("_again", "_ok", "_place", "any_queue", "queue_id", "topic", "unique_key")

    takes_ok: ClassVar[bool] = True

    def __init__(self, opaque: int, topic: str, queue_id: int, unique_key: str | None) -> None:
        super().__init__(opaque)
        self.topic = topic
        self.queue_id = queue_id
        # Whether the node chooses the queue; ``queue_id`` is then the producer's guess.
        self.any_queue = False
        self.unique_key = unique_key
        self._ok: OkReply | None = None
        # In a batch: the message's number, the count of messages, its id if each has one.
        self._place: tuple[int, int, str | None] | None = None

    @property
    def status(self) -> PutMessageStatus | None:
        """The status in the node's answer; None before it, and for other errors."""
        if self._ok is not None:
            return _PUT_OK
        response = self.response
        return None if response is None else status_of(response)

    @property
    def sent_count(self) -> int:
        """How many copies of the message the logs may have.

        It was sent so many times, not counting those that were certainly refused.
        """
        again: int = getattr(self, "_again", 0)
        return 1 + again

    def sent_again(self) -> None:
        """Count a further copy that may be stored."""
        self._again = self.sent_count

    def answer_ok(self, reply: OkReply) -> None:
        """Decide the message by a usual OK reply."""
        assert not self.is_done, "a request is decided once"
        self._ok = reply
        self._decided()

    def answer_of_batch(
        self, response: RemotingCommand, number: int, count: int, message_id: str | None
    ) -> None:
        """Decide the message by the answer to its batch of ``count``, the first has number 0.

        ``message_id`` is None if the answer does not name one for each.
        """
        self._place = number, count, message_id
        self.answer(response)

    def result(self) -> SendResult:
        """Return the answer.

        Raises UnknownOutcomeError if none came, RequestFailedError if the node refused the request
        without a put status (AccessDeniedError for its key or permissions), ProtocolError if the
        answer is malformed.
        """
        if self._ok is not None:
            _, message_id, queue_id, queue_offset, _ = self._ok
            return _new_tuple(  # as SendResult(...), at half the cost
                SendResult,
                (_PUT_OK, self.topic, queue_id, queue_offset, message_id, self.unique_key, None),
            )
        response = self.response
        if response is None:
            assert self.failure is not None, "a result needs an outcome: await wait()"
            msg = f"unknown whether the message to {self.topic} was stored: {self.failure}"
            hint = "look for its UNIQ_KEY in the log before sending it again"
            raise UnknownOutcomeError(msg, unique_key=self.unique_key, hint=hint)
        if is_denied(response):
            raise access_denied(response, f"the message to {self.topic} is not stored")
        status = status_of(response)
        if status is None:
            msg = f"refused with code {response.code}: {response.remark or 'no reason given'}"
            raise RequestFailedError(msg, code=response.code)
        return self._result(status, response)

    def _result(self, status: PutMessageStatus, response: RemotingCommand) -> SendResult:
        fields = response.ext_fields
        queue_offset = message_id = None
        if status.stored:
            queue_offset = integer_field(fields, "queueOffset", bits=64)
            message_id = text_field(fields, "msgId")
            if message_id and self._place is not None:
                number, count, own_id = self._place
                queue_offset += number
                if own_id is None:
                    found = message_id.count(",") + 1
                    msg = f"an answer with {found} message ids to a batch of {count}"
                    raise ProtocolError(msg)
                message_id = own_id
            if not message_id:
                msg = f"an answer {status.value} without msgId"
                raise ProtocolError(msg)
        return SendResult(
            status=status,
            topic=self.topic,
            queue_id=integer_field(fields, "queueId", self.queue_id),
            queue_offset=queue_offset,
            message_id=message_id,
            unique_key=self.unique_key,
            reason=response.remark,
        )

    async def wait(self) -> SendResult:
        """Wait for the outcome, then return or raise as ``result`` does; cancelling is safe."""
        await self.done()
        return self.result()


@final
class PendingBatch(PendingRequest):
    """A batch in flight; its answer decides each of its ``sends``.

    A batch that is refused because of its messages, one of them perhaps, is not answered yet:
    ``send_singly`` sends each by itself.
    """

    __slots__ = ("_send_singly", "sends", "weight")

    def __init__(
        self, opaque: int, sends: Sequence[PendingSend], send_singly: Callable[[], None]
    ) -> None:
        super().__init__(opaque)
        self.sends = sends
        self.weight = len(sends)
        self._send_singly = send_singly

    def answer(self, response: RemotingCommand) -> None:
        """Decide the messages by the answer to the batch."""
        super().answer(response)
        # By the code: with another one (a queue that is not there) each would be refused as well.
        if response.code == ResponseCode.MESSAGE_ILLEGAL:
            self._send_singly()
            return
        count = len(self.sends)
        message_ids = response.ext_fields.get("msgId")
        ids: list[Any] = message_ids.split(",") if isinstance(message_ids, str) else []
        if len(ids) != count:
            ids = [None] * count
        for number, (send, message_id) in enumerate(zip(self.sends, ids, strict=True)):
            send.answer_of_batch(response, number, count, message_id)

    def sent_again(self) -> None:
        """Count a further copy of each message."""
        for send in self.sends:
            send.sent_again()

    def fail(self, reason: str) -> None:
        """Decide the messages: no answer will come."""
        super().fail(reason)
        for send in self.sends:
            send.fail(reason)


def status_of(response: RemotingCommand) -> PutMessageStatus | None:
    """Return the put status in an answer to a send request; None for other errors."""
    if is_denied(response):
        return None
    if response.code == ResponseCode.SUCCESS:
        return _PUT_OK
    name = response.ext_fields.get(PUT_STATUS_FIELD)
    return _NAMES.get(str(name)) or _STATUSES.get(response.code)

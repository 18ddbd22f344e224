"""Messages that a request names by their offset in the log: 33 and 36 (``hastore get``).

::

    offset ─► head, topic, properties ─► may the key read it? ─► does its queue's unit name it?
                    ▲                                                   │ no         │ yes
                    └── once more ◄── dispatched within WAIT_S ◄── not dispatched yet   └─► record

Bytes at an offset prove nothing: a producer can write a whole record into a body.  The unit of the
consume queue does, because only dispatch writes units.

A message that was stored is answered to its producer up to some milliseconds before it is
dispatched, so a request for it waits.  The caller's connection waits with it: a connection has one
such request at a time.

Invariants: every request that gets no message has one answer, NOT_FOUND.  What lies at the offset
decides neither whether the request waits nor what is read nor, unless the disk is slow, when the
answer leaves.  A key that may read no topic at all causes no read and does not wait for dispatch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.errors import RequestFailedError
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import integer_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.broker.pulls.cold_reader import ColdReader
    from hastore.broker.request_target import RequestTarget
    from hastore.store.record.record_check import RecordCheck
    from hastore.wire.remoting_command import RemotingCommand

NOT_FOUND: Final = (
    "no message that you may read begins at this offset of the log (perhaps it has expired, or your"
    " access key lacks SUB on its topic)"
)
WAIT_S: Final = 1.0
# A refusal leaves this long after its look began.  A look takes 50 to 100 us, and some 20 us less
# where no record begins: enough to find the messages of others, given many requests.
REFUSED_AFTER_S: Final = 0.002
WAITING_MAX: Final = 1_024  # requests of all connections; one above it does not wait


class OffsetGuard(Protocol):
    """What knows the permissions in force."""

    def reader_of(self, request: RemotingCommand) -> Callable[[RecordCheck], bool] | None:
        """Return which messages a request's key may read; None if none."""


@attrs.frozen
class Place:
    """Where a message lies in the log."""

    physic_offset: int
    size: int


@final
@attrs.define(eq=False)
class MessageByOffset:
    """Finds messages of ``target``'s store; ``find``, then ``read``."""

    target: RequestTarget
    _cold_reader: ColdReader
    guard: OffsetGuard | None = None  # None: everybody may read everything
    # The offsets that requests wait for.
    _waiting: dict[trio.Event, int] = attrs.field(factory=dict, init=False)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for dispatch."""
        return bool(self._waiting)

    async def find(self, request: RemotingCommand) -> Place:
        """Return the place of the message that a request's field ``offset`` names.

        Raises RequestFailedError (NOT_FOUND) if there is none for the request's key, ProtocolError
        for a malformed offset, DiskError.
        """
        physic_offset = integer_field(request.ext_fields, "offset", bits=64)
        dispatched_offset = self.target.dispatched_offset
        began = trio.current_time()
        size = await self._size_of(request, physic_offset)
        may_wait = size is None and self._reader_of(request) is not None
        if may_wait and await self._is_dispatched_since(physic_offset, dispatched_offset):
            began = trio.current_time()
            size = await self._size_of(request, physic_offset)
        if size is None:
            await trio.sleep_until(began + REFUSED_AFTER_S)
            raise _not_found()
        return Place(physic_offset, size)

    async def read(self, place: Place) -> bytes:
        """Return the record at a place.  Raises RequestFailedError if it has expired, DiskError."""
        store = self.target.message_store
        record = await self._cold_reader.in_thread(
            partial(store.record_at, place.physic_offset, place.size)
        )
        if record is None:
            raise _not_found()
        return record

    def _reader_of(self, request: RemotingCommand) -> Callable[[RecordCheck], bool] | None:
        return _may_read_all if self.guard is None else self.guard.reader_of(request)

    async def _size_of(self, request: RemotingCommand, physic_offset: int) -> int | None:
        may_read = self._reader_of(request)
        if may_read is None:
            return None
        store = self.target.message_store
        steps = store.size_by_offset_steps(physic_offset, may_read)
        return await self._cold_reader.run(store.commit_log, steps)

    # -- what is not dispatched yet --------------------------------------------------------------

    async def _is_dispatched_since(self, physic_offset: int, dispatched_offset: int) -> bool:
        """Whether a stored record was dispatched after ``dispatched_offset``; wait for it."""
        log = self.target.message_store.commit_log
        if not dispatched_offset <= physic_offset < log.max_offset:
            return False
        if physic_offset < self.target.dispatched_offset:
            return True
        if len(self._waiting) >= WAITING_MAX:
            return False
        dispatched = trio.Event()
        self._waiting[dispatched] = physic_offset
        try:
            with trio.move_on_after(WAIT_S):
                await dispatched.wait()
        finally:
            del self._waiting[dispatched]
        return dispatched.is_set()

    def on_dispatched(self) -> None:
        """Wake the requests whose record has been dispatched."""
        if self._waiting:
            end = self.target.dispatched_offset
            for dispatched, physic_offset in self._waiting.items():
                if physic_offset < end:
                    dispatched.set()


def _may_read_all(_check: RecordCheck) -> bool:
    return True


def _not_found() -> RequestFailedError:
    return RequestFailedError(NOT_FOUND, code=ResponseCode.SYSTEM_ERROR)

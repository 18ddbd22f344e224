"""Lets the only put that waits read its slave's report itself.

A report wakes the link's read task, which waits for the socket again before the put has its turn.
For a producer that puts one message after the other, that turn and that wait were a sixth of a
put.  So a read task that has released one put, for which a task waits, offers its socket, and
stands by while that task's next puts read (the leader/followers pattern, with one leader)::

    read task   receive, release ── offer ── stands by ───────────────────────┬── receive
    producer    wait ────────────────── put: send, receive, release ── put … ─┘

With several puts in flight the read task does better: one turn wakes them all.  With several slaves
another's ack would decide most puts, and its interruption would cost more than the loan saves.

Invariants: one task at a time receives, and what it has received is taken before anything else
runs; the read task raises whatever ends the link.  A put that is decided otherwise (its deadline,
another slave's ack, the end of this master or of the link) is interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.env.interface import Env, SecondReceiver

RECEIVE_SIZE_MAX: Final = 4096  # bytes of reports
# The producer wakes in the first turn after an offer, but may run after this task: so a second one.
_TURNS: Final = 2
ACKS_WITHOUT_OFFER: Final = 100  # after an offer that no put took: it costs two turns


class Lender(Protocol):
    """Knows which puts wait for slaves: the HAService."""

    loan: ReadLoan | None  # on offer now

    def may_lend(self) -> bool:
        """Return whether an ack released one put, which a task awaited, since the last call."""

    def is_only_put(self, request: GroupCommitRequest) -> bool:
        """Return whether ``request`` waits only for a slave, and is the only put that waits."""


@final
@attrs.define(eq=False)
class ReadLoan:
    """The right to read one link's reports; its read task calls ``offer``, puts call ``use``."""

    env: Env
    sock: trio.socket.SocketType
    lender: Lender
    take: Callable[[bytes], None]  # handles what was received
    _receiver: SecondReceiver | None = attrs.field(default=None, init=False)  # made when needed
    _buffer: memoryview = attrs.field(default=memoryview(b""), init=False)
    _borrower: GroupCommitRequest | None = attrs.field(default=None, init=False)
    _returned: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _is_receiving: bool = attrs.field(default=False, init=False)
    _was_used: bool = attrs.field(default=False, init=False)  # the present offer
    _acks_left: int = attrs.field(default=0, init=False)  # without an offer
    _error: Exception | None = attrs.field(default=None, init=False)  # that ends the link

    def is_due(self) -> bool:
        """Return whether to ``offer`` now; to be called once after each read."""
        if not self.lender.may_lend():
            return False
        if self._acks_left:
            self._acks_left -= 1
            return False
        return True

    async def offer(self) -> None:
        """Stand by while puts read.

        Raises what a put has met: OSError for the link, and what the link's read service raises.
        After the end of the stream the next read returns 0 again.
        """
        if self._receiver is None:
            try:
                self._receiver = self.env.second_receiver(self.sock)
            except OSError:  # no descriptor is free: the link works without
                self._acks_left = ACKS_WITHOUT_OFFER
                return
            self._buffer = memoryview(bytearray(RECEIVE_SIZE_MAX))
        self._was_used = False
        self.lender.loan = self
        try:
            turns = 0
            while self._error is None:
                if self._borrower is not None:
                    turns = 0
                    await self._returned.wait_for_running()
                elif turns < _TURNS:
                    turns += 1
                    await trio.lowlevel.checkpoint()
                else:
                    break
        finally:
            self.lender.loan = None
        if not self._was_used:
            self._acks_left = ACKS_WITHOUT_OFFER
        if self._error is not None:
            raise self._error

    async def use(self, request: GroupCommitRequest) -> bool:
        """Read reports until ``request`` is decided; return False if others are to decide it."""
        receiver = self._receiver
        if receiver is None or not self.lender.is_only_put(request):
            return False
        if self._borrower is not None or self._error is not None:  # the read task raises it next
            return False
        self._borrower, self._was_used = request, True
        request.interrupt = self._interrupt
        try:
            while request.status is None and self.lender.loan is self:
                self._is_receiving = True
                count = await receiver.receive(self._buffer)
                self._is_receiving = False
                if count:
                    self.take(bytes(self._buffer[:count]))
                elif count is not None:
                    break
        except Exception as error:  # noqa: BLE001 - the read task raises it
            self._error = error
        finally:
            self._is_receiving = False
            request.interrupt = self._borrower = None
            self._returned.wakeup()
        return request.status is not None

    def _interrupt(self) -> None:
        """Make a put that reads check again whether it is decided and the loan still stands."""
        if self._is_receiving and self._receiver is not None:
            self._receiver.interrupt()

    def close(self) -> None:
        """Free what belongs to the loan, which ends with its link, and wake a put that reads."""
        if self._receiver is not None:
            self._receiver.close()

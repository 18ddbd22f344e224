"""A request that waits for its answer.

Invariant: decided exactly once, by an answer or by a failure; after a failure it is unknown whether
the node carried the request out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import trio

from hastore.concurrency.wait_notify_object import park, wake_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.wait_notify_object import Sleepers
    from hastore.wire.remoting_command import RemotingCommand
    from hastore.wire.usual_frames import OkReply


class PendingRequest:
    """``response`` is set once the node has answered, ``failure`` (one line) once it cannot.

    ``on_done`` is called once, synchronously, when either is set; it must not block or raise.
    """

    __slots__ = ("_sleepers", "deadline", "failure", "is_done", "on_done", "opaque", "response")

    # Whether ``answer_ok`` takes a usual OK reply to a message, without a RemotingCommand.
    takes_ok: ClassVar[bool] = False
    weight: int = 1  # of ``in_flight_max``

    def __init__(self, opaque: int) -> None:
        self.opaque = opaque
        self.deadline = 0.0  # trio time; set when the request is posted
        self.is_done = False
        self.response: RemotingCommand | None = None
        self.failure: str | None = None
        self.on_done: Callable[[PendingRequest], None] | None = None
        self._sleepers: Sleepers | None = None

    def answer(self, response: RemotingCommand) -> None:
        """Decide the request by its answer."""
        assert not self.is_done, "a request is decided once"
        self.response = response
        self._decided()

    def answer_ok(self, reply: OkReply) -> None:
        """Decide the request by a usual OK reply; only if ``takes_ok``."""
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """Decide the request: no answer will come."""
        assert not self.is_done, "a request is decided once"
        self.failure = reason
        self._decided()

    def sent_again(self) -> None:
        """Count that the request is sent once more, although it may have been carried out."""

    def _decided(self) -> None:
        self.is_done = True
        if self.on_done is not None:
            self.on_done(self)
        if self._sleepers is not None:
            wake_all(self._sleepers)
            self._sleepers = None

    @property
    def is_awaited(self) -> bool:
        """Whether a task sleeps in ``done``."""
        return self._sleepers is not None

    async def done(self) -> None:
        """Wait until the request is decided; cancelling the wait leaves it in flight."""
        if self.is_done:
            await trio.lowlevel.checkpoint()
            return
        if self._sleepers is None:
            self._sleepers = []
        await park(self._sleepers)

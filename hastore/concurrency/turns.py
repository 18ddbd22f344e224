"""Long work in the event loop: one at a time, in pieces, with pauses that are for all others.

A parser of JSON holds the interpreter's lock, so a thread would not help.  The work takes a
tenth of a loop's time at most, however many peers ask for it; they wait in the order in which they
came.  Work that is done at once (``hastore.wire.pieces``) does not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

import attrs
import trio

if TYPE_CHECKING:
    from hastore.wire.pieces import Pieces

T = TypeVar("T")

HEADER_S: Final = 45e-9  # of one byte of a JSON header: 64 KiB may take some 2.5 ms
SKIP_S: Final = 1.2e-9  # of one byte that is received and dropped: 64 KiB take some 80 us
RECEIVE_S: Final = 3.6e-9  # of one byte that is received and kept until its request is there
_PAUSE: Final = 9  # after each piece, as a multiple of the time that it took


@final
@attrs.define(eq=False)
class Turns:
    """One queue of long work."""

    pieces: int = attrs.field(default=0, init=False)  # done since the start
    size: int = attrs.field(default=0, init=False)  # bytes of theirs
    size_max: int = attrs.field(default=0, init=False)  # of one of them
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def run(self, work: Pieces[T]) -> T:
        """Do the work, and return its result.  Raises what it raises."""
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        async with self._turn:
            while True:
                begun = trio.current_time()
                try:
                    size = next(work)
                    self.size += size
                    self.size_max = max(self.size_max, size)
                except StopIteration as done:
                    last: T = done.value
                    return last
                finally:
                    self.pieces += 1
                    await trio.sleep((trio.current_time() - begun) * _PAUSE)

    async def rest(self, worked_s: float) -> None:
        """Pause for work that its peer has caused already."""
        async with self._turn:
            await trio.sleep(worked_s * _PAUSE)


async def with_checkpoints(work: Pieces[T]) -> T:
    """Do work with a checkpoint after each piece, and without a queue.  Raises what it raises."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await trio.lowlevel.checkpoint()

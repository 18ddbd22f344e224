"""Says in the log how far a long start is: an event every five seconds, and none for short work.

``recovering`` has the ``step`` (reading, writing again, checking again), how many bytes of it are
``done``, its ``size`` and the ``percent``; ``dispatching``, which follows, has no steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    import structlog

INTERVAL_S: Final = 5.0


@final
@attrs.define(eq=False)
class ProgressLog:
    """The events of one piece of work, whose first is due five seconds after this was made.

    ``now_s`` may be the wall clock: where that is set back, the five seconds begin again.
    """

    log: structlog.stdlib.BoundLogger
    event: str
    now_s: Callable[[], float]
    step: str | None = None
    size: int = 0
    done: int = 0
    _told_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Count from now."""
        self._told_s = self.now_s()

    def begin(self, step: str, size: int) -> None:
        """Go on to another step, of ``size`` bytes."""
        self.step, self.size, self.done = step, size, 0

    def advance(self, size: int) -> None:
        """Note that ``size`` more bytes are done; say so where it is time to, and more is left."""
        self.done += size
        now_s = self.now_s()
        passed_s = now_s - self._told_s
        if 0 <= passed_s < INTERVAL_S:
            return
        self._told_s = now_s
        if passed_s > 0 and self.done < self.size:
            pairs = {} if self.step is None else {"step": self.step}
            percent = 100 * self.done // self.size
            self.log.info(self.event, **pairs, done=self.done, size=self.size, percent=percent)

"""When the slaves of a master get appended bytes: the nearest one at once, the others in rounds.

::

    appends        │ ││ │   │││ │  │ ││    │
    nearest slave  └─┴┴─┴───┴┴┴─┴──┴─┴┴────┴──   one frame for each turn
    the others     └────────────┴────────────┴   one frame for each round

One slave's acknowledgement releases a put.  A frame to every slave for every append would cost the
master a send and a read each, and each slave a wake-up: with many slaves, most of all CPU time.  So
only the nearest slave gets each append at once.  The others get what has gathered in a round, which
lasts ROUND_S, or longer where there are many.  Whichever slave raises ``push2_slave_max_offset`` is
the nearest from then on, so a slow or frozen one loses that place within a round.

An ack that has released many puts is followed by as many new ones, in the same turn of all tasks.
Then the nearest slave's bytes leave at the end of that turn, in one frame: one for the first put
alone would cost both nodes a send, a read and a wake-up.

In a replica group a put waits for several nodes, and all of those get each append at once
(``GroupSendRounds``); learners and observers get the rounds.

A slave that lags by more than HELD_SIZE_MAX gets its frames as fast as it takes them.

Invariant: a slave is held back only while a round is under way, so nothing is held for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from hastore.store.commit_log import CommitLog

ROUND_S: Final = 0.003  # its timer costs as much as many appends
ROUND_S_A_LINK: Final = 0.0005  # so a round's sends and reads take a tenth of the time at most
HELD_SIZE_MAX: Final = 64 * 1024
CROWD: Final = 4  # puts that one ack has released: as many are worth a wait for the turn's end


class IdleLink(Protocol):
    """A link without anything to send: its WriteSocketService."""

    def on_appended(self, end: int, *, at_once: bool) -> None:
        """Send what the log has up to ``end``; not ``at_once``: in the link's own task."""


@attrs.define(eq=False)
class SendRounds:
    """Notifies links about appends; ``run`` serves the rounds."""

    commit_log: CommitLog
    # Whether a turn's appends leave in one frame, not the first at once: see WriteSocketService.
    gathers: bool
    released: int = attrs.field(default=0, init=False)  # how many puts, by the last ack
    # A dict as an ordered set: iterating a set of objects would not be deterministic.  A link adds
    # itself when it goes idle, and removes itself when it is woken.
    idle: dict[IdleLink, None] = attrs.field(factory=dict, init=False)
    # The link whose report raised the highest ack last; None: all links get everything at once.
    nearest: IdleLink | None = attrs.field(default=None, init=False)
    _is_under_way: bool = attrs.field(default=False, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def notify_appended(self) -> None:
        """Let idle links send; costs one check when there are none.

        Called after each append, and with a transient store pool after each commit.
        """
        idle = self.idle
        if not idle:
            return
        nearest = self.nearest
        if nearest is None:
            self._notify_all(at_once=self._sends_at_once)
            return
        others = len(idle)
        if nearest in idle:
            others -= 1
            at_once = self.released < CROWD and not self.gathers  # _sends_at_once, without a call
            nearest.on_appended(self.commit_log.readable_offset, at_once=at_once)
        if others and not self._is_under_way:
            self._begin()

    @property
    def _sends_at_once(self) -> bool:
        return self.released < CROWD and not self.gathers

    def holds_back(self, link: IdleLink, size: int) -> bool:
        """Return whether a link with ``size`` bytes to send leaves them for the next round."""
        if self.nearest is None or link is self.nearest or size > HELD_SIZE_MAX:
            return False
        if not self._is_under_way:
            self._begin()
        return True

    def forget(self, link: IdleLink) -> None:
        """Forget a link that has ended."""
        self.idle.pop(link, None)
        if link is self.nearest:
            self.nearest = None

    def _begin(self) -> None:
        self._is_under_way = True
        self._wake.wakeup()

    def _notify_all(self, *, at_once: bool) -> None:
        readable_offset = self.commit_log.readable_offset
        for link in tuple(self.idle):
            link.on_appended(readable_offset, at_once=at_once)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._wake.wait_for_running()
            await trio.sleep(max(ROUND_S, ROUND_S_A_LINK * len(self.idle)))
            self._is_under_way = False
            self._notify_all(at_once=True)


@final
@attrs.define(eq=False)
class GroupSendRounds(SendRounds):
    """The rounds of a replica group."""

    # The links of the nodes that puts, or the confirm offset, wait for.
    awaited: dict[IdleLink, None] = attrs.field(factory=dict, init=False)

    def notify_appended(self) -> None:
        """Let idle links send: those that are awaited now, the others in a round."""
        idle = self.idle
        if not idle:
            return
        others, end, at_once = len(idle), self.commit_log.readable_offset, self._sends_at_once
        for link in self.awaited:
            if link in idle:
                others -= 1
                link.on_appended(end, at_once=at_once)
        if others and not self._is_under_way:
            self._begin()

    def holds_back(self, link: IdleLink, size: int) -> bool:
        """Return whether a link with ``size`` bytes to send leaves them for the next round."""
        if link in self.awaited or size > HELD_SIZE_MAX:
            return False
        if not self._is_under_way:
            self._begin()
        return True

    def forget(self, link: IdleLink) -> None:
        """Forget a link that has ended."""
        self.idle.pop(link, None)
        self.awaited.pop(link, None)

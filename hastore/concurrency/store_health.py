"""Whether a node can store: what keeps it from writing now, and since when it could or could not.

::

    next log file ─────┐
    disk level ────────┤  failed(subject, reason)        reason, unable_since
    consume queues ────┼──────────────────────▶ StoreHealth ──▶ status, health rules,
    config tables ─────┘  works(subject)                able_since   members/ID, handover

The services that write report here at each change of outcome, and keep trying meanwhile.  One
object lives as long as the process, whatever roles its node has.

Times are seconds of ``clock``, which is the machine's uptime in a running node.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

STEADY_AFTER_S: Final = 30.0  # able for this long: fit to take over from a master that is not


@final
class Write(enum.Enum):
    """What a node writes, from the most to the least important; values are for operators."""

    NEXT_FILE = "the next log file"
    DISK_LEVEL = "the disk level"  # too full by [store] disk_full, so that a master refuses puts
    CONSUME_QUEUES = "consume queues and index"
    CONFIG = "topics, groups and offsets"


@final
@attrs.define(eq=False)
class StoreHealth:
    """What the last attempts to write came to, by subject."""

    clock: Callable[[], float] = lambda: 0.0  # of services on their own, without a node
    able_since: float | None = attrs.field(init=False)  # None while anything fails
    unable_since: float | None = attrs.field(default=None, init=False)  # None while nothing does
    # Whether the log's file system has room for two more log files; None until it was measured.
    has_room_for_two_files: bool | None = attrs.field(default=None, init=False)
    # A damaged record inside the log, by its offset, and what is wrong with it; None: none was met.
    bad_record: tuple[int, str] | None = attrs.field(default=None, init=False)
    # Tables that a start could not read, by file name: why, and what it read instead.
    torn_tables: dict[str, str] = attrs.field(factory=dict, init=False)
    _reasons: dict[tuple[Write, str], str] = attrs.field(factory=dict, init=False)
    _subscribers: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin without a failure."""
        self.able_since = self.clock()

    # -- what happens ----------------------------------------------------------------------------

    def failed(self, subject: Write, reason: str, *, part: str = "") -> None:
        """Record that the last attempt to write this failed; ``part`` names one of its files."""
        was_able = not self._reasons
        self._reasons[subject, part] = reason
        if was_able:
            self.able_since, self.unable_since = None, self.clock()
            self._notify()

    def works(self, subject: Write, *, part: str = "") -> None:
        """Record that the last attempt to write this succeeded, or that none is needed."""
        if self._reasons.pop((subject, part), None) is not None and not self._reasons:
            self.able_since, self.unable_since = self.clock(), None
            self._notify()

    def role_ended(self) -> None:
        """Forget what only the services of a role that has ended could take back."""
        for subject, part in list(self._reasons):
            if subject in {Write.CONSUME_QUEUES, Write.CONFIG}:
                self.works(subject, part=part)

    def subscribe(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` whenever the node becomes able or unable to store."""
        self._subscribers.append(notify)

    def _notify(self) -> None:
        for notify in self._subscribers:
            notify()

    # -- what is known ---------------------------------------------------------------------------

    @property
    def can_store(self) -> bool:
        """Whether nothing fails now."""
        return not self._reasons

    def fails(self, subject: Write) -> bool:
        """Whether the last attempt to write this failed."""
        return any(each is subject for each, _ in self._reasons)

    @property
    def reason(self) -> str | None:
        """Why the node cannot store, by its most important failure; None if it can."""
        return next(iter(self.failures.values()), None)

    @property
    def failures(self) -> dict[str, str]:
        """What cannot be written, and why, the most important first."""
        found: dict[str, str] = {}
        for write in Write:
            for (subject, _), reason in self._reasons.items():
                if subject is write:
                    found.setdefault(write.value, reason)
        return found

    @property
    def unable_for_s(self) -> float:
        """Since how many seconds the node cannot store; 0 if it can."""
        return 0.0 if self.unable_since is None else self.clock() - self.unable_since

    @property
    def is_steady(self) -> bool:
        """Whether it could store for STEADY_AFTER_S, and has room for two more log files."""
        if self.able_since is None or not self.has_room_for_two_files:
            return False
        return self.clock() - self.able_since >= STEADY_AFTER_S

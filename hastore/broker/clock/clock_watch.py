"""Watches one node's wall clock: compares it, logs doubts, and corrects store times.

::

    config/clock.json ──▶ the time that was trusted last ─┐
    boot clock, wall clock ───────────────────────────────┼─▶ judge ──▶ expiry waits, or not
    peers, coordinator ───────────────────────────────────┘         ├─▶ log, status
                                                                    └─▶ the master's store time

Store times never fall along a log.  So one message with a time of next week would give that time to
all messages until next week.  ``store_time_ms`` looks at each step of the wall clock before a
message gets its time: if other machines contradict the clock, their time counts instead.

A file is as old as its last byte.  So the clock is also looked at when that has been written: if it
is behind then, the file counts as written when the clock is right again (``date_floor``).

Invariant: ``check`` neither waits nor fails; without its file the watch only knows less.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.clock.clock_status import ClockStatus
from hastore.broker.clock.clock_verdict import TOLERANCE_MS, ClockVerdict, Trust, TrustedTime, judge
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.quantities import format_span
from hastore.store.json_file import JsonFile
from hastore.store.log.cleaning import DateFloor
from hastore.store.log.store_directory import CLOCK_FILE
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.broker.clock.clock_verdict import ClockReading
    from hastore.env.interface import Env

CHECK_S: Final = 5.0
_STORED_EVERY_MS: Final = 3_600_000
_DOUBT_STORED_EVERY_MS: Final = 300_000  # a restart loses what a doubt has lasted since then
_HINT: Final = "compare the clocks: hastore doctor; set this machine's clock by NTP"

_log = logger("broker")


@final
@attrs.define(eq=False, kw_only=True)
class ClockWatch:
    """The watch of an open store.

    ``keep_ms``: how long log files are kept.  ``others`` returns the readings of other clocks.
    ``store_timestamp_ms`` returns the store time of the log's last record; 0 if it is empty.
    ``max_offset`` returns the log's end.  ``on_correction`` is called once what is added to the
    clock for store times may have changed.
    """

    env: Env
    data_dir: str
    keep_ms: float
    others: Callable[[], Iterable[ClockReading]]
    store_timestamp_ms: Callable[[], int]
    max_offset: Callable[[], int]
    on_correction: Callable[[], None]
    date_floor: DateFloor | None = attrs.field(default=None, init=False)
    verdict: ClockVerdict = attrs.field(
        factory=lambda: ClockVerdict(trust=Trust.PLAUSIBLE), init=False
    )
    _trusted: TrustedTime | None = attrs.field(default=None, init=False)
    _is_guess: bool = attrs.field(default=False, init=False)  # ``_trusted`` is one
    _opened_at_ms: int = attrs.field(init=False)  # the log's last store time when it was opened
    _file: JsonFile = attrs.field(init=False)
    _stored: dict[str, Any] = attrs.field(factory=dict, init=False)  # the file's content
    _stored_at_ms: float = attrs.field(default=-math.inf, init=False)  # boot clock
    _file_fault: str | None = attrs.field(default=None, init=False)
    _checked_at_ms: float = attrs.field(default=0.0, init=False)  # boot clock
    _wall_offset_ms: float = attrs.field(default=0.0, init=False)  # wall minus boot, then
    _was_behind: bool = attrs.field(default=False, init=False)  # in this doubt, at some time
    # Wakes the watch, so that a new doubt is in the file before another role begins.
    _changed: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _is_time_ahead: bool = attrs.field(default=False, init=False)  # of the log, as logged last
    _doubt: Trust | None = attrs.field(default=None, init=False)  # its kind, as logged last

    def __attrs_post_init__(self) -> None:
        """Remember where the log's time stood."""
        self._file = JsonFile(self.env.disk, f"{self.data_dir.rstrip('/')}/{CLOCK_FILE}")
        self._opened_at_ms = self.store_timestamp_ms()
        self.check()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._stored = await self.env.offload.run(self._file.load)
        self._trusted = _trusted_of(self._stored, self._boot_id(), self._boot_ms(), self.keep_ms)
        if self._trusted is None:
            self._trusted, self._is_guess = self._trusted_without_file(), True
        self._was_behind |= self._stored.get("isBehind") is True  # or a check has seen it already
        offset, date_ms = self._stored.get("floorOffset"), self._stored.get("floorMs")
        if self.date_floor is None and type(offset) is int and type(date_ms) is int:
            self.date_floor = DateFloor(physic_offset=offset, date_ms=date_ms)
        while True:
            self.check()
            self._report()
            await self._store()
            with trio.move_on_after(CHECK_S):
                await self._changed.wait_for_running()

    def _trusted_without_file(self) -> TrustedTime:
        """Return what is known of a new directory, or of an earlier version's or RocketMQ's.

        How long the latter was not in use is not known.
        """
        return TrustedTime(
            boot_id=self._boot_id(),
            boot_ms=self._boot_ms(),
            wall_ms=self._opened_at_ms or self.env.wall_clock.now_ms(),
            slack_ms=self.keep_ms / 2 if self._opened_at_ms else 0.0,
        )

    # -- the clock now ---------------------------------------------------------------------------

    def check(self) -> ClockVerdict:
        """Judge the clock as it is now."""
        wall_ms, boot_ms = self.env.wall_clock.now_ms(), self._boot_ms()
        passed_ms = boot_ms - self._checked_at_ms
        trusted = self._trusted
        is_accepted = trusted is not None and trusted.doubted_ms >= self.keep_ms
        was_behind, was_in_doubt = self._was_behind, self.verdict.in_doubt
        if trusted is not None and not self._is_guess:
            # Or the machine stood still, or the node was stopped for long: then files stay longer.
            was_behind |= trusted.lead_ms(wall_ms, boot_ms) > TOLERANCE_MS
        self._checked_at_ms, self._wall_offset_ms = boot_ms, wall_ms - boot_ms
        verdict = judge(
            trusted,
            self.others(),
            wall_ms=wall_ms,
            boot_ms=boot_ms,
            keep_ms=self.keep_ms,
            is_synchronised=self._is_synchronised(),
        )
        if not verdict.in_doubt:
            if self._trusted is not None or verdict.trust is Trust.CONFIRMED:
                self._is_guess = False
                self._trusted = TrustedTime(
                    boot_id=self._boot_id(), boot_ms=boot_ms, wall_ms=wall_ms
                )
        elif verdict.trust is Trust.UNCONFIRMED and self._trusted is not None:
            doubted_ms = self._trusted.doubted_ms + passed_ms
            self._trusted = attrs.evolve(self._trusted, doubted_ms=doubted_ms)
        if was_behind and not verdict.in_doubt and not is_accepted:
            # What was written meanwhile has dates that are too early.
            self.date_floor = DateFloor(physic_offset=self.max_offset(), date_ms=wall_ms)
        # A doubt that began behind stays one of that kind, wherever the clock is set next.
        is_behind = verdict.in_doubt and (self._was_behind or verdict.lead_ms < 0)
        if verdict.in_doubt != was_in_doubt or is_behind != self._was_behind:
            self._changed.wakeup()
        self._was_behind = is_behind
        if verdict.is_corrected or self.verdict.is_corrected:
            self.on_correction()
        self.verdict = verdict
        return verdict

    def _is_synchronised(self) -> bool:
        """Return whether the kernel takes the clock for right, where that counts.

        After a reboot of unknown length it does: files from before it then stay for ``keep_ms``
        once more.  Not after a step while the machine runs: an NTP daemon that may not step a
        clock says to the kernel that it is right while it slews it for weeks.
        """
        trusted = self._trusted
        is_after_boot = trusted is not None and trusted.slack_ms > 0 and not self._is_guess
        return is_after_boot and self.env.is_clock_synchronised()

    def store_time_ms(self, now_ms: int) -> int:
        """Return the wall time ``now_ms`` as a message may get it."""
        boot_ms = self._boot_ms()
        verdict = self.verdict
        if abs(now_ms - boot_ms - self._wall_offset_ms) > TOLERANCE_MS:
            verdict = self.check()
        return now_ms - round(verdict.lead_ms) if verdict.is_corrected else now_ms

    def status(self) -> ClockStatus:
        """Return a snapshot, of the clock as it is now."""
        verdict = self.check()
        return ClockStatus(
            trust=verdict.trust.value,
            in_doubt_because=verdict.reason,
            hint=_HINT if verdict.in_doubt else None,
            leads_s={who: round(lead_ms / 1000, 3) for who, lead_ms in verdict.leads_ms.items()},
            corrected_by_s=-verdict.lead_ms / 1000 if verdict.is_corrected else 0.0,
            store_time_lead_s=self._store_time_lead_ms() / 1000,
        )

    def _store_time_lead_ms(self) -> float:
        """Return how far the log's last store time is ahead of the clock; 0 if it is not."""
        now_ms = self.store_time_ms(self.env.wall_clock.now_ms())
        return max(float(self.store_timestamp_ms() - now_ms), 0.0)

    def _boot_ms(self) -> float:
        return self.env.wall_clock.boot_s() * 1000

    def _boot_id(self) -> str | None:
        return self.env.boot_id

    # -- the log ---------------------------------------------------------------------------------

    def _report(self) -> None:
        """Log when a doubt begins, changes its kind, or ends, and where the log's time is ahead."""
        doubt = self.verdict.trust if self.verdict.in_doubt else None
        if doubt is not None and doubt is not self._doubt:
            _log.warning(
                "clock_in_doubt",
                reason=self.verdict.reason,
                effect="log files are not deleted because of their age",
                next=_HINT,
            )
        elif doubt is None and self._doubt is not None:
            _log.info("clock_trusted", because=self.verdict.trust.value)
        self._doubt = doubt
        lead_ms = self._store_time_lead_ms()
        was_ahead, self._is_time_ahead = self._is_time_ahead, lead_ms > TOLERANCE_MS
        if self._is_time_ahead and not was_ahead:
            _log.warning(
                "store_time_ahead",
                store_timestamp_ms=self.store_timestamp_ms(),
                ahead=format_span(lead_ms / 1000),
                effect="each new message gets this store time until the clock has reached it",
            )
        elif was_ahead and not self._is_time_ahead:
            _log.info("store_time_reached", store_timestamp_ms=self.store_timestamp_ms())

    # -- the file --------------------------------------------------------------------------------

    async def _store(self) -> None:
        """Write the file if the trust has changed, and now and then."""
        trusted, stored = self._trusted, self._stored
        if trusted is None:
            return
        floor = self.date_floor
        said = {
            "bootId": trusted.boot_id,
            "inDoubt": self.verdict.in_doubt,
            "isBehind": self._was_behind,
            "floorOffset": None if floor is None else floor.physic_offset,
            "floorMs": None if floor is None else floor.date_ms,
        }
        is_known = all(stored.get(key) == value for key, value in said.items())
        every_ms = _DOUBT_STORED_EVERY_MS if self.verdict.in_doubt else _STORED_EVERY_MS
        if is_known and self._boot_ms() - self._stored_at_ms < every_ms:
            return
        value = {
            **said,
            "bootMs": round(trusted.boot_ms),
            "wallMs": round(trusted.wall_ms),
            "slackMs": round(trusted.slack_ms),
            "doubtedMs": round(trusted.doubted_ms),
        }
        self._stored_at_ms = self._boot_ms()
        try:
            await self.env.offload.run(lambda: self._file.store(value))
        except DiskError as error:
            if self._file_fault is None:
                _log.warning("clock_file_not_written", reason=str(error), next=error.hint)
            self._file_fault = str(error)
        else:
            self._stored, self._file_fault = value, None


def _trusted_of(
    stored: dict[str, Any], boot_id: str | None, boot_ms: float, keep_ms: float
) -> TrustedTime | None:
    """Return what the file says, as of this boot; None if it says nothing valid."""
    numbers = [stored.get(key) for key in ("bootMs", "wallMs", "slackMs", "doubtedMs")]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return None
    trusted = TrustedTime(
        boot_id=boot_id,
        boot_ms=numbers[0],  # type: ignore[arg-type] # checked above
        wall_ms=numbers[1],  # type: ignore[arg-type]
        slack_ms=numbers[2],  # type: ignore[arg-type]
        doubted_ms=numbers[3],  # type: ignore[arg-type]
    )
    if boot_id is not None and stored.get("bootId") == boot_id and trusted.boot_ms <= boot_ms:
        return trusted
    return attrs.evolve(trusted, boot_ms=boot_ms, slack_ms=keep_ms / 2)

"""What a master knows of one slave: validates its reports and decides what to send next.

No clock, no socket: ``HAConnection`` and its services pass reports in and act on the decisions.

A first report only says where the slave wants to resume.  Its log may have diverged from ours below
that offset, which it finds out when our bytes arrive.  So its reports become acknowledgements
(``counts_as_ack``) once one is above the offset where the stream began, or repeats that offset
while our log ends there (a stock slave that has all of an idle master's log).

The states of a connection::

    CONNECTED --first report--> CATCHING_UP --acknowledged the end--> STREAMING
        |                            ^  |                               |
        |                            |  +---------- fell behind <-------+
        +--illegal report--> REFUSED |
      any state --link ended--> CLOSED

Invariants: ack_offset <= next_transfer_from_where <= the log's max offset; ack_offset never falls;
an illegal report changes nothing but the state.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from hastore.errors import DivergedError, ExpiredError, IllegalReportError
from hastore.status import HAConnectionState, SlaveStart
from hastore.wire.ha_frames import (
    FIRST_OFFSET_MIN,
    REPORT_DIVERGED,
    REPORT_FROM_EARLIEST,
    REPORT_FROM_LAST_FILE,
    REPORT_NEW_SLAVE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import HAConfig
    from hastore.store.commit_log import CommitLog

EXPIRED_HINT: Final = "give the slave an empty directory: it copies the log again"


class HAConnectionEvent(enum.Enum):
    """What can happen to a connection."""

    FIRST_REPORT = "first-report"
    CAUGHT_UP = "caught-up"
    FELL_BEHIND = "fell-behind"
    ILLEGAL_REPORT = "illegal-report"
    LINK_ENDED = "link-ended"


_S = HAConnectionState
_E = HAConnectionEvent

TRANSITIONS: Final[dict[tuple[HAConnectionState, HAConnectionEvent], HAConnectionState]] = {
    (_S.CONNECTED, _E.FIRST_REPORT): _S.CATCHING_UP,
    (_S.CATCHING_UP, _E.CAUGHT_UP): _S.STREAMING,
    (_S.STREAMING, _E.CAUGHT_UP): _S.STREAMING,
    (_S.CATCHING_UP, _E.FELL_BEHIND): _S.CATCHING_UP,
    (_S.STREAMING, _E.FELL_BEHIND): _S.CATCHING_UP,
    (_S.CONNECTED, _E.ILLEGAL_REPORT): _S.REFUSED,
    (_S.CATCHING_UP, _E.ILLEGAL_REPORT): _S.REFUSED,
    (_S.STREAMING, _E.ILLEGAL_REPORT): _S.REFUSED,
    (_S.CONNECTED, _E.LINK_ENDED): _S.CLOSED,
    (_S.CATCHING_UP, _E.LINK_ENDED): _S.CLOSED,
    (_S.STREAMING, _E.LINK_ENDED): _S.CLOSED,
    (_S.REFUSED, _E.LINK_ENDED): _S.REFUSED,
    (_S.CLOSED, _E.LINK_ENDED): _S.CLOSED,
}


def next_state(state: HAConnectionState, event: HAConnectionEvent) -> HAConnectionState:
    """Return the state after ``event``; the pair must be in ``TRANSITIONS``."""
    assert (state, event) in TRANSITIONS, f"{event.value} in state {state.value}"
    return TRANSITIONS[state, event]


@attrs.frozen(kw_only=True)
class LogBounds:
    """The part of a log that slaves can get, in bytes: min <= last file <= max offset."""

    min_offset: int  # its first byte
    max_offset: int  # its readable end (exclusive)
    last_file_offset: int  # the start of the file that holds its last byte

    @classmethod
    def of(cls, commit_log: CommitLog) -> LogBounds:
        """Return the bounds of a log as it is now."""
        max_offset = commit_log.readable_offset
        min_offset = commit_log.min_offset
        last = max_offset - max_offset % commit_log.file_size
        if last == max_offset and last > min_offset:
            last -= commit_log.file_size
        return cls(min_offset=min_offset, max_offset=max_offset, last_file_offset=last)


def expired(slave_offset: int, min_offset: int) -> ExpiredError:
    """Return the error for a slave that needs a deleted file."""
    return ExpiredError(
        f"this slave needs the log from {slave_offset} on, but this master has deleted its files"
        f" before {min_offset}: [store] delete_held_after limits how long it keeps them for slaves",
        min_offset=min_offset,
        slave_offset=slave_offset,
        hint=EXPIRED_HINT,
    )


class StreamStart(NamedTuple):
    """What a first report asks for."""

    offset: int  # of the first byte to send
    # Whether the report was no offset of the slave's: it repeats it until it has received bytes.
    is_request: bool = False
    is_ack: bool = False  # whether it counts at once


def classic_start(config: HAConfig, offset: int, log: LogBounds) -> StreamStart:
    """Return where a classic slave's stream begins; raises as ``SlaveProgress.on_report``."""
    if offset < 0:
        msg = f"first report {offset} is negative"
        raise IllegalReportError(msg, reported_offset=offset, max_offset=log.max_offset)
    if offset > log.max_offset and offset >= FIRST_OFFSET_MIN:
        msg = (
            f"slave asks for bytes from {offset} on, {offset - log.max_offset} bytes beyond"
            f" this master's end {log.max_offset}: not the same log"
        )
        raise DivergedError(
            msg,
            master_offset=log.max_offset,
            slave_offset=offset,
            hint="compare the two: hastore log diff MASTER_DIR SLAVE_DIR",
        )
    last_file_only = offset == REPORT_FROM_LAST_FILE or (
        offset == REPORT_NEW_SLAVE and config.ha_new_slave_from is SlaveStart.LAST_FILE
    )
    if last_file_only:
        return StreamStart(log.last_file_offset, is_request=True)
    if offset in (REPORT_NEW_SLAVE, REPORT_FROM_EARLIEST):
        return StreamStart(log.min_offset, is_request=True)
    if offset < log.min_offset:
        msg = (
            f"slave is at {offset}, before this master's oldest byte {log.min_offset}:"
            " the bytes between have expired"
        )
        raise ExpiredError(msg, min_offset=log.min_offset, slave_offset=offset, hint=EXPIRED_HINT)
    return StreamStart(offset)


def _classic_rule(progress: SlaveProgress) -> Callable[[int, LogBounds], StreamStart]:
    return partial(classic_start, progress.config)


@final
@attrs.define(eq=False)
class SlaveProgress:
    """One slave's offsets in our log on one link, in bytes; None before its first report."""

    config: HAConfig
    # The protocol's rule for a first report; it raises for an illegal one.
    start_rule: Callable[[int, LogBounds], StreamStart] = attrs.field(
        default=attrs.Factory(_classic_rule, takes_self=True)
    )
    state: HAConnectionState = attrs.field(default=HAConnectionState.CONNECTED, init=False)
    # The next byte to send; never falls, and ack_offset <= it <= our max offset.
    next_transfer_from_where: int | None = attrs.field(default=None, init=False)
    # The highest report: the end (exclusive) of what the slave has.  Never falls.
    ack_offset: int | None = attrs.field(default=None, init=False)
    # The first report as received: where the stream is to begin, or a new slave's request.
    first_report: int | None = attrs.field(default=None, init=False)
    # Whether ack_offset counts as an acknowledgement; until then it is where the slave resumes.
    counts_as_ack: bool = attrs.field(default=False, init=False)
    # Why the link has ended, the first reason; None while reports count and bytes are sent.
    ended_because: str | None = attrs.field(default=None, init=False)
    # The largest body of the next frame, in bytes: from ha_transfer_batch_size to its maximum.
    batch_size: int = attrs.field(init=False)
    # A new slave's request (classic: 0, 1 or 2), until it reports something else; None for others.
    _start_request: int | None = attrs.field(default=None, init=False)
    # The first byte sent on this link: <= next_transfer_from_where.
    _start_offset: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with the configured batch."""
        self.batch_size = self.config.ha_transfer_batch_size

    def advance(self, offset: int, max_offset: int) -> bool:
        """Take a report of a slave that follows; return False if ``on_report`` must take it.

        It takes most of them at half the cost; ``max_offset`` is the log's readable end.
        """
        ack_offset, sent = self.ack_offset, self.next_transfer_from_where
        if not self.counts_as_ack or ack_offset is None or sent is None:
            return False
        if not ack_offset < offset <= sent:
            return False
        self.ack_offset = offset
        caught_up = offset >= max_offset
        if caught_up != (self.state is HAConnectionState.STREAMING):
            event = HAConnectionEvent.CAUGHT_UP if caught_up else HAConnectionEvent.FELL_BEHIND
            self.state = next_state(self.state, event)
        return True

    def on_report(self, offset: int, log: LogBounds) -> None:
        """Validate one report and update the offsets and the state.

        Raises DivergedError if the slave's log cannot be a prefix of ours, ExpiredError if the
        bytes it needs are deleted, IllegalReportError for a report that no slave sends.  After any
        of them the connection must be closed.
        """
        if offset == REPORT_DIVERGED:
            msg = "the slave says that its log is not this master's (a report of -1)"
            raise IllegalReportError(
                msg,
                reported_offset=offset,
                max_offset=log.max_offset,
                hint="hastore status SLAVE names both offsets; hastore log diff compares the logs",
            )
        if self.next_transfer_from_where is None:
            start = self.start_rule(offset, log)
            self.next_transfer_from_where = self._start_offset = start.offset
            self.first_report = offset
            self.ack_offset = min(offset, start.offset)
            self._start_request = offset if start.is_request else None
            self.counts_as_ack = start.is_ack
            self.state = next_state(self.state, HAConnectionEvent.FIRST_REPORT)
        elif offset == self._start_request:
            return  # a new slave repeats its request until it has received something
        else:
            self._check_later_report(offset, log)
            self.ack_offset = offset
            self._start_request = None
            self.counts_as_ack = offset > self._start_offset or offset >= log.max_offset
        caught_up = self.ack_offset >= log.max_offset
        if caught_up != (self.state is HAConnectionState.STREAMING):
            event = HAConnectionEvent.CAUGHT_UP if caught_up else HAConnectionEvent.FELL_BEHIND
            self.state = next_state(self.state, event)

    @property
    def log_begin_offset(self) -> int | None:
        """Where a slave's log begins that began on this link; None: it had one, or not known."""
        return self._start_offset if self.first_report == REPORT_NEW_SLAVE else None

    @property
    def needed_from(self) -> int | None:
        """The first byte that the slave has not acknowledged; None before its first report."""
        return self.ack_offset if self._start_request is None else self._start_offset

    def refuse(self) -> None:
        """Record that the slave is refused: for a report, or because its bytes are deleted."""
        self.state = next_state(self.state, HAConnectionEvent.ILLEGAL_REPORT)

    def end(self, reason: str) -> None:
        """Record why the link has ended; the first reason stays."""
        if self.ended_because is None:
            self.ended_because = reason

    def close(self) -> None:
        """Record that the link is torn down."""
        self.state = next_state(self.state, HAConnectionEvent.LINK_ENDED)

    def next_batch_size(self, available: int) -> int:
        """Return how many of ``available`` bytes to send.

        Batches double while the slave lags and halve while less than a quarter waits, so under a
        steady load one frame takes all bytes since the last.
        """
        config = self.config
        size = self.batch_size
        if available <= size:
            if available < size // 4:
                self.batch_size = max(size // 2, config.ha_transfer_batch_size)
            return available
        self.batch_size = min(size * 2, config.ha_transfer_batch_size_max)
        return size

    def sent(self, size: int) -> None:
        """Move ``next_transfer_from_where`` by a frame that is being sent."""
        assert self.next_transfer_from_where is not None
        self.next_transfer_from_where += size

    def _check_later_report(self, offset: int, log: LogBounds) -> None:
        assert self.next_transfer_from_where is not None
        assert self.ack_offset is not None
        if offset > self.next_transfer_from_where:
            beyond = "this master's end" if offset > log.max_offset else "what was sent to it"
            msg = (
                f"report {offset} is beyond {beyond}"
                f" (sent {self.next_transfer_from_where}, end {log.max_offset})"
            )
        elif offset < self.ack_offset:
            msg = f"report {offset} falls behind the earlier report {self.ack_offset}"
        else:
            return
        raise IllegalReportError(msg, reported_offset=offset, max_offset=log.max_offset)

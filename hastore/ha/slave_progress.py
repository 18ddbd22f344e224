"""What a master knows of one slave, and what it must do next: facts in, decisions out.

No clock, no socket.  ``HAConnection``'s services feed it the slave's reports and ask it what to
send.  Every report is judged here before anybody counts it.

A slave that says where it wants to go on has shown nothing yet: its log may have parted from ours
before that place, which it finds out when our bytes come.  So a report answers producers
(``is_proven``) once it is beyond the place where the link began, or repeats it where our log has
nothing beyond (a stock slave that has all of an idle master's log).

Invariants: ack_offset <= next_transfer_from_where <= the log's max offset; ack_offset never falls;
an illegal report changes nothing but the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import DivergedError, ExpiredError, IllegalReportError
from hastore.ha.ha_connection_state import HAConnectionEvent, next_state
from hastore.status import HAConnectionState, SlaveStart
from hastore.wire.ha_frames import (
    REPORT_DIVERGED,
    REPORT_FROM_EARLIEST,
    REPORT_FROM_LAST_FILE,
    REPORT_NEW_SLAVE,
)

if TYPE_CHECKING:
    from hastore.config import HAConfig

EXPIRED_HINT: Final = "give the slave an empty directory: it copies the log anew"


@attrs.frozen(kw_only=True)
class LogBounds:
    """The part of a log that exists: [min_offset, max_offset), and where its last file starts."""

    min_offset: int
    max_offset: int
    last_file_offset: int


@final
@attrs.define(eq=False)
class SlaveProgress:
    """One slave's positions.

    ``next_transfer_from_where`` is the next byte to send and ``ack_offset`` the highest legal
    report; both None before the first report.
    """

    config: HAConfig
    state: HAConnectionState = attrs.field(default=HAConnectionState.CONNECTED, init=False)
    next_transfer_from_where: int | None = attrs.field(default=None, init=False)
    ack_offset: int | None = attrs.field(default=None, init=False)
    first_report: int | None = attrs.field(default=None, init=False)
    is_proven: bool = attrs.field(default=False, init=False)
    batch_size: int = attrs.field(default=0, init=False)
    _asked_to_begin: int | None = attrs.field(default=None, init=False)
    _began_at: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with the configured batch."""
        self.batch_size = self.config.ha_transfer_batch_size

    def on_report(self, offset: int, log: LogBounds) -> None:
        """Judge one report.

        Raises DivergedError where the slave's log cannot be a prefix of ours, ExpiredError where
        what it needs is deleted, IllegalReportError where no slave of any log would say so.  After
        any of them the connection must be closed.
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
            self.next_transfer_from_where = self._first_transfer_offset(offset, log)
            self.first_report = offset
            self.ack_offset = min(offset, self.next_transfer_from_where)
            self._began_at = self.next_transfer_from_where
            self.state = next_state(self.state, HAConnectionEvent.FIRST_REPORT)
        elif offset == self._asked_to_begin:
            return  # a new slave repeats its wish until it has received something
        else:
            self._check_later_report(offset, log)
            self.ack_offset = offset
            self._asked_to_begin = None
            self.is_proven = offset > self._began_at or offset >= log.max_offset
        caught_up = self.ack_offset >= log.max_offset
        if caught_up != (self.state is HAConnectionState.STREAMING):
            event = HAConnectionEvent.CAUGHT_UP if caught_up else HAConnectionEvent.FELL_BEHIND
            self.state = next_state(self.state, event)

    @property
    def needed_from(self) -> int | None:
        """The first byte that the slave has not acknowledged; None before its first report."""
        return self.ack_offset if self._asked_to_begin is None else self._began_at

    def refuse(self) -> None:
        """Note that the slave is refused: an illegal report, or bytes that are gone."""
        self.state = next_state(self.state, HAConnectionEvent.ILLEGAL_REPORT)

    def end(self) -> None:
        """Note that the link has ended."""
        self.state = next_state(self.state, HAConnectionEvent.LINK_ENDED)

    def next_batch_size(self, available: int) -> int:
        """Say how many of ``available`` bytes to send.

        Batches double while the slave lags and halve when much less is waiting, so a steady load
        settles where one frame takes all that came since the last.
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
        """Move on by what is leaving now."""
        assert self.next_transfer_from_where is not None
        self.next_transfer_from_where += size

    def _first_transfer_offset(self, offset: int, log: LogBounds) -> int:
        if offset < 0:
            msg = f"first report {offset} is negative"
            raise IllegalReportError(msg, reported_offset=offset, max_offset=log.max_offset)
        if offset > log.max_offset and offset > REPORT_FROM_LAST_FILE:
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
            offset == REPORT_NEW_SLAVE and self.config.ha_new_slave_from is SlaveStart.LAST_FILE
        )
        if last_file_only:
            self._asked_to_begin = offset
            return log.last_file_offset
        if offset in (REPORT_NEW_SLAVE, REPORT_FROM_EARLIEST):
            self._asked_to_begin = offset
            return log.min_offset
        if offset < log.min_offset:
            msg = (
                f"slave is at {offset}, before this master's oldest byte {log.min_offset}:"
                " the bytes between have expired"
            )
            raise ExpiredError(
                msg, min_offset=log.min_offset, slave_offset=offset, hint=EXPIRED_HINT
            )
        return offset

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

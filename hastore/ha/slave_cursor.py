"""A slave's place in the stream of its link: validates frame headers and decides what follows.

No socket, no clock, no disk: the HAClient acts on the verdicts.  What a header means::

    its offset              our log has bytes                our log is empty
    position                APPEND; a heartbeat below        APPEND
                            own_end: DivergedError
    position to own_end     a heartbeat: ASK_LATER
    after own_end           a heartbeat: ExpiredError
    1                       DivergedError                    bytes: APPEND_AFTER_ZERO
    2                       DivergedError                    ASK_AGAIN
    any other               DivergedError                    APPEND

Under autoswitch 1 and 2 are offsets as any other, and a heartbeat below our end means nothing: a
RocketMQ master sends one before the first bytes.

Which link follows is decided by the table in ``hastore.ha.link_step``.

Invariant: bytes are only appended at the slave's own max offset, so its log stays a prefix of its
master's.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import DivergedError, ExpiredError, ProtocolError
from hastore.ha.link_step import SHOWN, LinkAction, LinkEvent, LinkStep, transition
from hastore.ha.slave_framing import ClassicFraming
from hastore.status import HAClientState, SlaveStart
from hastore.wire.ha_frames import REPORT_FROM_EARLIEST, REPORT_FROM_LAST_FILE, REPORT_NEW_SLAVE

if TYPE_CHECKING:
    from hastore.ha.slave_framing import SlaveFraming
    from hastore.wire.double_read_buffer import DoubleReadBuffer

_NOTHING_SENT: Final = (
    "the master sends nothing from the start of its log: it has no messages yet, or it is a"
    " RocketMQ broker that has deleted its first file"
)
_NOTHING_SENT_HINT: Final = (
    "if it has messages, begin the copy at its last file: hastore slave --from last-file"
)
_DELETED_HINT: Final = "re-seed: start this slave with an empty --data directory"


class FrameVerdict(enum.Enum):
    """What to do with a frame."""

    APPEND = "append"  # a heartbeat has nothing to append
    APPEND_AFTER_ZERO = "append-after-zero"  # a stock master streams from 1: byte 0 is always 0x00
    ASK_AGAIN = "ask-again"  # reconnect: a stock master took "last file" for an offset
    # Reconnect: the master's log begins in the overlap or right after it, or a promoted master asks
    # whether this slave compares (``ServedSlaves``).
    ASK_LATER = "ask-later"


@attrs.frozen(slots=True)
class Frame:
    """A whole frame in the read buffer."""

    physic_offset: int  # of the body's first byte
    start: int  # the body is [start, start + size) in the buffer
    size: int  # bytes of the body; 0: a heartbeat


@final
@attrs.define(eq=False)
class SlaveCursor:
    """The decisions of a slave about its newest link."""

    slave_from: SlaveStart  # where a slave without a log begins
    framing: SlaveFraming = attrs.field(factory=ClassicFraming)
    step: LinkStep = attrs.field(default=LinkStep.COMPARING, init=False)
    # What ``status`` shows: STREAMING from a link's first frame on.
    state: HAClientState = attrs.field(default=HAClientState.CONNECTING, init=False)
    # Whether the master has taken a first report of 2 for an offset, as RocketMQ's do.
    stock_master: bool = attrs.field(default=False, init=False)
    # Why a healthy link may bring nothing; None while there is no such reason.
    warning: ProtocolError | None = attrs.field(default=None, init=False)
    # Heartbeats where log bytes should follow, on this link.
    _empty_answers: int = attrs.field(default=0, init=False)

    def on(self, event: LinkEvent) -> LinkAction:
        """Move to the step after ``event`` and return what to do."""
        self.step, action = transition(self.step, event)
        self.state = SHOWN.get(action, self.state)
        return action

    def would(self, event: LinkEvent) -> LinkAction:
        """Return what ``on`` would return, without moving."""
        return transition(self.step, event)[1]

    def first_report(self, position: int) -> int:
        """Return a new link's first report: ``position``, or without a log what ``--from`` says."""
        self.warning, self._empty_answers = None, 0
        if position > 0 or not self.framing.has_start_reports:
            return position
        if self.slave_from is SlaveStart.EARLIEST:
            return REPORT_FROM_EARLIEST
        return REPORT_NEW_SLAVE if self.stock_master else REPORT_FROM_LAST_FILE

    def next_frame(
        self, buffer: DoubleReadBuffer, position: int, own_end: int
    ) -> tuple[FrameVerdict, Frame] | None:
        """Return the next frame in ``buffer`` and what to do with it; None while it is not whole.

        ``position`` is the stream's next byte, ``own_end`` where our log ends: after ``position``
        while the overlap is compared.  A header is validated as soon as its bytes are there.
        Raises DivergedError or ExpiredError as the table above says, ProtocolError for a frame that
        no master sends.
        """
        start = buffer.dispatch_position
        available = buffer.write_position - start
        header_size = self.framing.header_size
        if available < header_size:
            return None
        physic_offset, size = self.framing.header(buffer.view, start)
        verdict = FrameVerdict.APPEND
        if physic_offset != position:
            verdict = self._check_other(physic_offset, size, position, own_end)
        elif not size and position < own_end:
            if self.framing.heartbeats_name_end:
                raise _diverged(physic_offset, own_end)
            self._count_empty_answer(physic_offset)
        elif position < own_end:
            self.warning, self._empty_answers = None, 0
        if available - header_size < size:
            return None
        return verdict, Frame(physic_offset, start + header_size, size)

    def _count_empty_answer(self, physic_offset: int) -> None:
        self._empty_answers += 1
        if self._empty_answers > 1:  # the first may precede the first bytes
            msg = (
                f"the master sends nothing from {physic_offset} on, though its log is longer: it"
                " may have deleted these bytes"
            )
            self.warning = ProtocolError(msg, hint=_DELETED_HINT)

    def _check_other(
        self, physic_offset: int, size: int, position: int, own_end: int
    ) -> FrameVerdict:
        if own_end > 0 and not size and physic_offset > position:
            # Only a refusal has this form: the master's log begins at this offset now; or one byte
            # after ``position``, a question.
            if physic_offset <= own_end:
                return FrameVerdict.ASK_LATER
            msg = (
                f"the master deleted what this slave needs: from {own_end} on;"
                f" the master's log begins at {physic_offset} now"
            )
            raise ExpiredError(
                msg,
                min_offset=physic_offset,
                slave_offset=own_end,
                hint=_DELETED_HINT,
            )
        if own_end > 0:
            raise _diverged(physic_offset, own_end)
        if not self.framing.has_start_reports:
            return FrameVerdict.APPEND
        if physic_offset == REPORT_FROM_EARLIEST and size:
            self.warning = None
            return FrameVerdict.APPEND_AFTER_ZERO
        if physic_offset == REPORT_FROM_EARLIEST:
            self._empty_answers += 1
            if self._empty_answers > 1:  # the first may precede the first bytes
                self.warning = ProtocolError(_NOTHING_SENT, hint=_NOTHING_SENT_HINT)
            return FrameVerdict.APPEND
        if physic_offset == REPORT_FROM_LAST_FILE:
            self.stock_master = True
            return FrameVerdict.ASK_AGAIN
        return FrameVerdict.APPEND


def _diverged(physic_offset: int, own_end: int) -> DivergedError:
    difference = physic_offset - own_end
    msg = (
        f"master is at {physic_offset}, this slave's log ends at {own_end}"
        f" ({abs(difference)} bytes {'behind' if difference > 0 else 'ahead'}):"
        " not the same log"
    )
    return DivergedError(
        msg,
        master_offset=physic_offset,
        slave_offset=own_end,
        hint="compare the two: hastore log diff MASTER_DIR SLAVE_DIR;"
        " or give this slave an empty --data directory",
    )

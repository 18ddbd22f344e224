"""What depends on the HA protocol in a master's link to one slave: classic or autoswitch.

Observers of a replica group speak the classic protocol and read up to the confirm offset.

::

                              classic                       autoswitch
    before the first report   nothing                       a handshake, and its answer
    first report, new slave   0, 1 or 2                     0, and a flag in the handshake
    report                    8 bytes                       12 bytes
    frame's header            12 bytes                      36 bytes: epoch, confirm offset
    a frame ends at           a file's end                  a file's end and an epoch's end

The epochs of an autoswitch link are those of its handshake's answer: a master that begins another
epoch ends all links.

Invariants (autoswitch): each frame carries the epoch of all its bytes, and that epoch's start; no
frame begins below the first epoch; epochs do not fall within a link.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, final

import attrs

from hastore.epoch_history import EpochHistory
from hastore.errors import ExpiredError, IllegalReportError, ProtocolError
from hastore.ha.slave_progress import EXPIRED_HINT, SlaveProgress, StreamStart
from hastore.wire import autoswitch_frames, ha_frames
from hastore.wire.autoswitch_frames import (
    HANDSHAKE_SIZE,
    STATE_HANDSHAKE,
    STATE_READY,
    STATE_SHUTDOWN,
    STATE_TRANSFER,
    Handshake,
    HandshakeAnswer,
    encode_frame_header,
)
from hastore.wire.ha_frames import REPORT_DIVERGED, REPORT_NEW_SLAVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import HAConfig
    from hastore.epoch_history import EpochEntry
    from hastore.ha.slave_progress import LogBounds

_STATE: Final = struct.Struct(">i")
_CLASSIC_HINT: Final = (
    'start the slave with [ha] protocol = "autoswitch"; or let it read as an observer, at the port'
    " of [listen] observer"
)
_HINT: Final = (
    'this port takes slaves of its replica group: hastore nodes with [ha] protocol = "autoswitch",'
    " or RocketMQ 5 in controller mode; clients, and an observer's --master-client, need another"
)


class MasterFraming(Protocol):
    """The bytes of one link, as its ReadSocketService and WriteSocketService see them."""

    header_size: ClassVar[int]
    # Unpacks one report into a tuple with its offset.
    reports: ClassVar[struct.Struct]
    # Whether the slave begins with a handshake, and each report has a state.
    greets: ClassVar[bool]

    @property
    def readable_end(self) -> Callable[[], int] | None:
        """Returns where the readable log ends for this link; None: where it ends."""

    @property
    def last_epoch_start(self) -> int:
        """Frames that begin below it end at ``epoch_end`` at the latest."""

    @property
    def header(self) -> Callable[[int, int], bytes]:
        """Returns a frame's header, given its offset and its body's size."""

    def epoch_end(self, physic_offset: int) -> int:
        """Return where the epoch of the byte there ends; it is not the last one."""

    def check_reports(self, data: bytes) -> None:
        """Raise ProtocolError unless ``data`` are whole reports; only where a slave greets."""

    def progress(self, config: HAConfig) -> SlaveProgress:
        """Return the state of the link's slave, with the protocol's rules for its first report."""


@final
class ClassicFraming:
    """RocketMQ's protocol without a controller (``hastore.wire.ha_frames``)."""

    header_size: ClassVar[int] = ha_frames.HEADER_SIZE
    reports: ClassVar[struct.Struct] = ha_frames.REPORT
    greets: ClassVar[bool] = False
    readable_end: Final = None
    last_epoch_start: Final = 0
    header: Final = ha_frames.HEADER.pack

    def epoch_end(self, physic_offset: int) -> int:
        """Never called: there is one epoch."""
        raise AssertionError(physic_offset)

    def check_reports(self, data: bytes) -> None:
        """Accept any: eight bytes are a report."""

    def progress(self, config: HAConfig) -> SlaveProgress:
        """Return the state of the link's slave."""
        return SlaveProgress(config)


CLASSIC: Final = ClassicFraming()


@final
@attrs.frozen(eq=False)
class ObserverFraming:
    """The classic protocol for observers of a replica group, which read to the confirm offset."""

    header_size: ClassVar[int] = ha_frames.HEADER_SIZE
    reports: ClassVar[struct.Struct] = ha_frames.REPORT
    greets: ClassVar[bool] = False
    last_epoch_start: ClassVar[int] = 1 << 63  # every frame ends at ``epoch_end`` at the latest

    readable_end: Callable[[], int]  # the confirm offset

    @property
    def header(self) -> Callable[[int, int], bytes]:
        """Returns a frame's header."""
        return ha_frames.HEADER.pack

    def epoch_end(self, _physic_offset: int) -> int:
        """Return the confirm offset: above it another master's bytes may follow."""
        return self.readable_end()

    def check_reports(self, data: bytes) -> None:
        """Accept any: eight bytes are a report."""

    def progress(self, config: HAConfig) -> SlaveProgress:
        """Return the state of the link's slave."""
        return SlaveProgress(config)


@final
@attrs.define(eq=False)
class AutoswitchMasterFraming:
    """RocketMQ 5's protocol in controller mode (``hastore.wire.autoswitch_frames``), on one link.

    ``answer`` comes before anything else is sent.
    """

    header_size: ClassVar[int] = autoswitch_frames.FRAME_HEADER_SIZE
    reports: ClassVar[struct.Struct] = struct.Struct(">4xq")  # ``check_reports`` reads the states
    greets: ClassVar[bool] = True

    # Accepts a handshake, or raises ProtocolError.  None: its answer follows later (``accept``).
    greet: Callable[[Handshake], HandshakeAnswer | None]
    # The group's at this moment, <= the log's end; None: not known.
    confirm_offset: Callable[[], int | None]
    handshake: Handshake | None = attrs.field(default=None, init=False)  # None: none is answered
    held: Handshake | None = attrs.field(default=None, init=False)  # came, and is not answered yet
    readable_end: ClassVar[None] = None
    last_epoch_start: int = attrs.field(default=0, init=False)
    told_offset: int = attrs.field(default=0, init=False)  # the confirm offset in the last header
    _epochs: EpochHistory = attrs.field(factory=EpochHistory, init=False)
    _last_entry: EpochEntry | None = attrs.field(default=None, init=False)  # of ``_epochs``
    _max_offset: int = attrs.field(default=0, init=False)  # in the answer

    # -- the slave's half ------------------------------------------------------------------------

    def take_handshakes(self, data: bytes) -> tuple[bytes | None, bytes]:
        """Read the handshakes at the front of what came before the first report.

        Return the answer to the first one, None if it has been given or is to come, and the bytes
        after them.  A Java slave repeats its handshake until it has read a whole answer; a second
        answer would make it drop the link.  Raises ProtocolError for any other peer.
        """
        answer = None
        while len(data) >= _STATE.size:
            (state,) = _STATE.unpack_from(data)
            if state == STATE_TRANSFER and self.handshake is not None:
                break
            if state != STATE_HANDSHAKE:
                if state == STATE_READY and self.handshake is None:
                    # The upper half of an offset below 4 GiB.
                    msg = "the slave sent a report of the classic protocol, and this master speaks"
                    raise ProtocolError(f"{msg} autoswitch", hint=_CLASSIC_HINT)
                what = "the slave" if self.handshake is None else "after its handshake the slave"
                came = "a report" if state == STATE_TRANSFER else f"state {state}"
                if not STATE_READY <= state <= STATE_SHUTDOWN:
                    what, came = "the peer", "bytes of another protocol"
                raise ProtocolError(f"{what} sent {came} instead of a handshake", hint=_HINT)
            if len(data) < HANDSHAKE_SIZE:
                break
            handshake = Handshake.decode(data[:HANDSHAKE_SIZE])
            former = self.handshake or self.held
            if former is None:
                self.held = handshake
                found = self.greet(handshake)
                answer = None if found is None else self.accept(found)
            elif handshake != former:
                msg = f"the slave sent a second handshake, {handshake}, after {former}"
                raise ProtocolError(msg, hint=_HINT)
            data = data[HANDSHAKE_SIZE:]
        return answer, data

    def is_report(self, data: bytes) -> bool:
        """Return whether what ``take_handshakes`` left over begins with a whole report."""
        return len(data) >= self.reports.size and _STATE.unpack_from(data)[0] == STATE_TRANSFER

    def accept(self, answer: HandshakeAnswer) -> bytes:
        """Begin the link with this answer to the handshake that is held; return its bytes."""
        entries = answer.epochs.entries
        assert entries, "a master has an epoch"
        self.handshake, self.held = self.held, None
        self._epochs, self._max_offset = answer.epochs, answer.max_offset
        self._last_entry = entries[-1]
        self.last_epoch_start = entries[-1].start_offset
        return answer.encode()

    def check_reports(self, data: bytes) -> None:
        """Raise ProtocolError unless ``data`` are whole reports.

        -1 passes: a hastore slave says so that the logs differ.
        """
        for state, offset in autoswitch_frames.REPORT.iter_unpack(data):
            if state != STATE_TRANSFER:
                came = "a handshake" if state == STATE_HANDSHAKE else f"state {state}"
                msg = f"the slave sent {came} where a report was expected"
                raise ProtocolError(msg, hint=_HINT)
            if offset < REPORT_DIVERGED:
                msg = f"the slave reported {offset}, where no log can end"
                raise IllegalReportError(
                    msg, reported_offset=offset, max_offset=self._max_offset, hint=_HINT
                )

    def progress(self, config: HAConfig) -> SlaveProgress:
        """Return the state of the link's slave."""
        return SlaveProgress(config, self._start)

    def _start(self, offset: int, log: LogBounds) -> StreamStart:
        """Return where the stream begins after a first report of ``offset`` >= 0.

        Raises IllegalReportError beyond the end of the handshake's answer, which a slave never
        passes (a Java master takes such a report for an ack), ExpiredError below the log's or the
        epochs' beginning (a Java master sends a negative size then).
        """
        assert self.handshake is not None, "a report came before the handshake"
        if offset > self._max_offset:
            msg = (
                f"first report {offset} is beyond {self._max_offset}, where this master's log ended"
                " at the handshake: the slave must cut its log first"
            )
            raise IllegalReportError(msg, reported_offset=offset, max_offset=log.max_offset)
        if offset == REPORT_NEW_SLAVE:
            last_file = self.handshake.from_last_file
            start = StreamStart(
                log.last_file_offset if last_file else log.min_offset,
                is_request=log.max_offset > 0,
                is_ack=log.max_offset == 0,  # it has all of an empty log
            )
        else:
            start = StreamStart(offset)
        first = self._epochs.entries[0]
        least = max(log.min_offset, first.start_offset)
        if start.offset < least:
            what = f"oldest byte {least}"
            if first.start_offset == least:
                what = f"first epoch {first}: who wrote the bytes before it is not known"
            msg = f"slave needs the log from {start.offset} on, before this master's {what}"
            raise ExpiredError(msg, min_offset=least, slave_offset=offset, hint=EXPIRED_HINT)
        return start

    # -- the master's half -----------------------------------------------------------------------

    def header(self, physic_offset: int, body_size: int) -> bytes:
        """Return a frame's header, with the epoch of its first byte."""
        confirm_offset = self.confirm_offset()
        self.told_offset = confirm_offset or 0
        label = self._last_entry  # of nearly all frames
        if label is None or physic_offset < label.start_offset:
            label = self._epochs.at(physic_offset)
        return encode_frame_header(body_size, physic_offset, label, confirm_offset)

    def epoch_end(self, physic_offset: int) -> int:
        """Return where the epoch of the byte there ends; it is not the last one."""
        entry = self._epochs.at(physic_offset)
        end = None if entry is None else self._epochs.end_of(entry)
        assert end is not None, f"{physic_offset} in {self._epochs}"
        return end

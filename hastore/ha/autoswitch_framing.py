"""A slave's side of RocketMQ 5's AutoSwitch protocol: handshake, epochs, confirm offset.

::

    slave                                       master
    handshake: node id, learner             -->
                                            <--  where its log ends, its epochs
    first report: an overlap below the point -->
                                            <--  frames with epoch and confirm offset
    reports                                 -->

What the epochs mean is decided in ``link_epochs``; here they become durable.  The confirm offset is
what the master says all members have, as far as our log goes.  It never falls, but by a cut: what
was confirmed by one master is in the log of the next.

A RocketMQ master that does not wait for all members calls its log's end confirmed.  So each of its
frames is below the confirm offset in its own header, and no frame of a master that waits for us is:
such a frame tells that the confirm offset can be trusted.  What it covers is never cut (see
``ConfirmMark``).

Invariant: an epoch's entry is durable before the first byte of the epoch is in our log, and the
newest epoch that a master has named before anything is reported to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.ha.link_epochs import LinkEpochs, check_is_not_deposed
from hastore.ha.log_fetch import GroupLogReader
from hastore.ha.slave_framing import NOT_PLAIN, LinkStart
from hastore.store.node_identity import ConfirmMark
from hastore.store.recovery.cut import check_confirm_mark
from hastore.wire.autoswitch_frames import (
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    STATE_TRANSFER,
    FrameHeader,
    Handshake,
    HandshakeAnswer,
    encode_report,
)

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.epoch_history import EpochEntry, EpochHistory
    from hastore.ha.slave_framing import Exchange
    from hastore.store.acked_offset import AckedOffset
    from hastore.store.commit_log import CommitLog
    from hastore.store.epoch_file import EpochFile
    from hastore.store.node_identity import NodeIdentity, Unverified

_OFFSET_MAX: Final = (1 << 63) - 1
_unpack: Final = FRAME_HEADER.unpack_from


@final
@attrs.define(eq=False, kw_only=True)
class AutoswitchFraming:
    """The framing of one open store's links."""

    env: Env
    identity: NodeIdentity
    epoch_file: EpochFile
    history: EpochHistory  # the epochs of our log, as stored
    handshake: Handshake
    # What consumers may see: at most our log's end when it was set.
    confirm_offset: int
    acked: AckedOffset | None = None  # what we have reported; None: nothing keeps it
    epochs: LinkEpochs | None = attrs.field(default=None, init=False)  # of the newest link
    masters_epoch: int | None = attrs.field(default=None, init=False)  # the last that it named
    # All members have our log up to here, by the word of masters that wait for them.
    kept_offset: int = attrs.field(default=0, init=False)
    kept_rises: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)  # woken then
    _kept_epoch: int = attrs.field(default=0, init=False)  # of the master that said so
    _is_waited_for: bool = attrs.field(default=False, init=False)  # by the newest frame
    header_size: int = attrs.field(default=FRAME_HEADER_SIZE, init=False)
    has_start_reports: bool = attrs.field(default=False, init=False)
    heartbeats_name_end: bool = attrs.field(default=False, init=False)
    answers_heartbeats: bool = attrs.field(default=True, init=False)
    _log: CommitLog | None = attrs.field(default=None, init=False)
    _wanted: EpochHistory | None = attrs.field(default=None, init=False)  # to be stored
    _label: EpochEntry | None = attrs.field(default=None, init=False)  # of the newest header
    _confirmed: int = attrs.field(default=0, init=False)  # by the newest header
    # A plain frame has this state and label, and ends here at the latest.
    _plain: tuple[int, int, int] | None = attrs.field(default=None, init=False)
    _plain_until: int = attrs.field(default=0, init=False)

    async def shake_hands(self, exchange: Exchange, log: CommitLog) -> LinkStart:
        """Begin a link.

        Raises ForeignGroupError, ExpiredError or BelowConfirmMarkError if the logs do not fit
        together, DeposedMasterError, ProtocolError without a sound answer, and DiskError.
        """
        self.epochs = self._plain = self._label = self._wanted = None
        self._log, self._confirmed, self._is_waited_for = log, 0, False
        answer = await exchange(self.handshake.encode(), HandshakeAnswer.decode)
        check_is_not_deposed(answer, self.identity.current.seen_epoch)
        epochs = LinkEpochs.agree(
            self.history, min_offset=log.min_offset, end_offset=log.max_offset, answer=answer
        )
        masters_epoch = self.masters_epoch = answer.epochs.last_epoch
        if masters_epoch is not None:
            await self.env.offload.run(lambda: self.identity.see(masters_epoch))
        mark = self.identity.current.confirm_mark
        kept = max(self.kept_offset, 0 if mark is None else mark.offset)
        if epochs.point < min(kept, log.max_offset):
            end = await self.env.offload.run(lambda: log.first_message_end(epochs.point))
            check_confirm_mark(log.path, epochs.point, kept, end)
        self.epochs = epochs
        entries = answer.epochs.entries
        return LinkStart(
            point=epochs.point,
            asked_min=entries[0].start_offset if entries else log.min_offset,
            epoch_ends=frozenset(
                entry.start_offset for entry in entries if entry.start_offset < answer.max_offset
            ),
        )

    # -- frames ----------------------------------------------------------------------------------

    def plain_header(self, view: memoryview, position: int) -> tuple[int, int]:
        """Return offset and body size of a frame that continues the newest epoch's bytes."""
        state, body_size, physic_offset, epoch, epoch_start, confirm_offset = _unpack(
            view, position
        )
        if (
            (state, epoch, epoch_start) != self._plain
            or confirm_offset < 0
            or physic_offset + body_size > self._plain_until
        ):
            return NOT_PLAIN
        self._confirmed = confirm_offset
        if body_size:
            self._is_waited_for = confirm_offset <= physic_offset
        return physic_offset, body_size

    def header(self, view: memoryview, position: int) -> tuple[int, int]:
        """Return offset and body size; the offset of a master without a log is 0."""
        assert self.epochs is not None, "frames follow the handshake"
        frame = FrameHeader.decode(view, position)
        self.epochs.check(frame)
        self._label = frame.epoch
        if frame.confirm_offset is not None:
            self._confirmed = frame.confirm_offset
        if frame.body_size:
            self._is_waited_for = frame.confirm_offset is not None and frame.confirm_offset <= (
                frame.physic_offset or 0
            )
        return frame.physic_offset or 0, frame.body_size

    def needs_epochs(self, physic_offset: int, body_size: int) -> bool:
        """Return whether the frame brings an epoch of which nothing is stored."""
        epochs, log, label = self.epochs, self._log, self._label
        assert epochs is not None
        assert log is not None
        min_offset = log.min_offset if log.max_offset else physic_offset
        wanted = epochs.history_with(physic_offset, body_size, min_offset)
        if wanted is None:
            return False
        self._plain = None
        if label is not None and label.start_offset <= physic_offset:
            self._plain = (STATE_TRANSFER, *label)
            until = epochs.plain_until(label)
            self._plain_until = _OFFSET_MAX if until is None else until
        self._wanted = wanted
        return wanted != self.history

    async def store_epochs(self) -> None:
        """Store the epochs.  Raises DiskError."""
        wanted = self._wanted
        assert wanted is not None
        await self.env.offload.run(lambda: self.epoch_file.store(wanted))
        self.history = wanted

    def appended(self, end_offset: int) -> bool:
        """Raise the confirm offset to what the newest header says, up to ``end_offset``."""
        before = self.confirm_offset
        confirmed = min(self._confirmed, end_offset)
        self.confirm_offset = max(before, confirmed)
        if self._is_waited_for and confirmed > self.kept_offset:
            self.kept_offset, self._kept_epoch = confirmed, self.masters_epoch or 0
            self.kept_rises.wakeup()
        return self.confirm_offset > before

    def keep_mark(self) -> None:
        """Write the confirm mark, as far as our log is on disk; blocks.  Raises DiskError."""
        offset = 0 if self._log is None else min(self.kept_offset, self._log.flushed_offset)
        if offset:
            self.mark_kept(offset)

    def mark_kept(self, offset: int) -> None:
        """Raise the confirm mark to an offset up to ``kept_offset``; blocks.  Raises DiskError."""
        self.identity.raise_confirm_mark(ConfirmMark(epoch=self._kept_epoch, offset=offset))

    @property
    def unverified(self) -> Unverified | None:
        """The part of our log that may differ from the master's; None: no part."""
        return self.identity.current.unverified

    # -- beside the link -------------------------------------------------------------------------

    def log_reader(self) -> GroupLogReader:
        """Return who reads the master's log for a comparison with ours."""
        return GroupLogReader(
            epochs=self.history,
            seen_epoch=self.identity.current.seen_epoch,
            randomness=self.env.randomness,
        )

    # -- reports ---------------------------------------------------------------------------------

    def encode_report(self, physic_offset: int) -> bytes:
        """Return the 12 bytes of a report, which counts as an acknowledgement from now on."""
        if self.acked is not None:
            self.acked.raise_to(physic_offset)
        return encode_report(physic_offset)

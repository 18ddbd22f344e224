"""The epochs of one autoswitch link: how far two logs agree, and who wrote each frame's bytes.

No socket, no clock, no disk.  A master's answer to the handshake is the authority::

    ours      1-0 ───────────── 2-2444 ──────┐ end 4888
    master's  1-0 ───────────── 3-2444 ─┐ max offset 3005
                          point ┘  what we have from here on is cut, and epoch 2 forgotten

A frame's label must fit the answer: it is the epoch that wrote the frame's bytes or, as RocketMQ
labels a frame that ends where an epoch ends, the next one.  So our history grows by the answer's
entries only, and by each before its first byte.

Invariant: our history after a frame is ours below the point, and the master's from the point on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.epoch_history import EpochHistory, fault_of
from hastore.errors import DeposedMasterError, ExpiredError, ForeignGroupError, ProtocolError

if TYPE_CHECKING:
    from hastore.epoch_history import EpochEntry
    from hastore.wire.autoswitch_frames import FrameHeader, HandshakeAnswer

_OTHER_LIST_HINT: Final = "look at its epochs: hastore log epochs DIR, on the master"
_REINIT_HINT: Final = "re-seed: start this slave with an empty --data directory"
_NO_EPOCHS_HINT: Final = "give this node an empty --data directory: it copies its master's log"
_FOREIGN_HINT: Final = (
    "is --master of this node's group?  Compare: hastore log epochs DIR, on both; or give this"
    " slave an empty --data directory"
)


def check_is_not_deposed(answer: HandshakeAnswer, seen_epoch: int) -> None:
    """Raise DeposedMasterError for a master whose last epoch is below one that we have seen."""
    epoch = answer.epochs.last_epoch
    if (epoch or 0) < seen_epoch:
        raise DeposedMasterError(
            f"the master is in {_named(epoch)}, and this node has seen epoch {seen_epoch}: it is"
            " no longer the master",
            epoch=epoch,
            seen_epoch=seen_epoch,
            hint="follow the master of the newest epoch: hastore slave --master HOST:HA_PORT",
        )


def _named(epoch: int | None) -> str:
    return "no epoch" if epoch is None else f"epoch {epoch}"


@final
@attrs.frozen(kw_only=True)
class LinkEpochs:
    """The epochs of a link; ``agree`` makes it."""

    own: EpochHistory  # of our log below ``point``
    masters: EpochHistory
    # The logs should agree below it: our log's end, or what is there from it on must be cut.
    point: int
    must_cut: bool = False  # our log goes on beyond ``point``

    @classmethod
    def agree(
        cls, own: EpochHistory, *, min_offset: int, end_offset: int, answer: HandshakeAnswer
    ) -> LinkEpochs:
        """Find up to where our log, ``[min_offset, end_offset)``, and the master's should agree.

        Raises ForeignGroupError if no epoch is common or ours are unknown, and ExpiredError if
        nothing below the point is left to compare before a cut.
        """
        masters = answer.epochs
        if not end_offset:
            return cls(own=EpochHistory(), masters=masters, point=0)
        if not own.entries:
            raise _foreign(
                f"this slave's log ends at {end_offset}, but no epoch says who wrote it",
                answer,
                end_offset,
                _NO_EPOCHS_HINT,
            )
        common = own.consistent_point(end_offset, masters, answer.max_offset)
        if common is None:
            raise _foreign(
                f"foreign group: this slave's epochs {own} and the master's {masters} have none in"
                " common",
                answer,
                end_offset,
                _FOREIGN_HINT,
            )
        point = common.offset
        compared_min = max(min_offset, masters.entries[0].start_offset)
        if point < min_offset or (point < end_offset and point <= compared_min):
            raise ExpiredError(
                f"too far behind: by its epochs this slave's log agrees with the master's up to"
                f" {point} only, and no byte below that is left to compare",
                min_offset=compared_min,
                slave_offset=end_offset,
                hint=_REINIT_HINT,
            )
        must_cut = point < end_offset
        return cls(own=own.cut(point), masters=masters, point=point, must_cut=must_cut)

    # -- frames ----------------------------------------------------------------------------------

    def check(self, frame: FrameHeader) -> None:
        """Raise ProtocolError if a frame's label does not fit the master's epochs.

        Also if the master has begun another epoch since: the next handshake brings its entry.
        """
        label = frame.epoch
        if label is None:  # only a heartbeat has none
            return
        masters, offset = self.masters, frame.physic_offset or 0
        end = offset + frame.body_size
        if masters.last_epoch is None or label.epoch > masters.last_epoch:
            msg = (
                f"the master is in epoch {label.epoch} now, and this link began in"
                f" {_named(masters.last_epoch)}: connecting again"
            )
            raise ProtocolError(msg)
        writer = masters.at(offset)
        is_next = label.start_offset == end and label in masters.entries
        if writer is None or (label != writer and not is_next):
            raise _wrong_label(label, offset, f"its list says {masters}")
        following = masters.end_of(writer)
        if following is not None and end > following:
            raise _wrong_label(label, offset, f"{end - offset} bytes, beyond {following}")

    def history_with(
        self, frame_offset: int, body_size: int, min_offset: int
    ) -> EpochHistory | None:
        """Return the epochs of our log with this frame, to be stored before its first byte.

        None for a frame, or a heartbeat, of bytes below the point, which our log has; and before a
        cut, because until then other masters' bytes follow the point in our log.
        ``min_offset`` is our log's.  Raises ProtocolError if they are too many.
        """
        end = frame_offset + body_size
        if self.must_cut or end < self.point or (body_size and end == self.point):
            return None
        begun_until = max(frame_offset, self.point)
        begun = (e for e in self.masters.entries if self.point <= e.start_offset <= begun_until)
        entries = (*self.own.drop_expired(min_offset).entries, *begun)
        fault = fault_of(entries)
        if fault is not None:
            msg = f"this slave's epochs and the master's do not fit together: {fault}"
            raise ProtocolError(msg, hint=_OTHER_LIST_HINT)
        return EpochHistory(entries).drop_expired(min_offset)

    def plain_until(self, label: EpochEntry) -> int | None:
        """Return where frames of this epoch must end at the latest; None: nowhere."""
        return self.masters.end_of(label)


def _foreign(
    message: str, answer: HandshakeAnswer, end_offset: int, hint: str
) -> ForeignGroupError:
    return ForeignGroupError(
        message, master_offset=answer.max_offset, slave_offset=end_offset, hint=hint
    )


def _wrong_label(label: EpochEntry, physic_offset: int, why: str) -> ProtocolError:
    msg = f"the master sent a frame of epoch {label} at {physic_offset}: {why}"
    return ProtocolError(msg, hint=_OTHER_LIST_HINT)

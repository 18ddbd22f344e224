"""What of a slave's link depends on its protocol: the classic one, and what any must offer.

::

    connect -> shake_hands -> first report -> frames: header, before_append, appended -> reports

A plain frame is one that only continues the log: ``plain_header`` reads its header fast and checks
next to nothing, because the caller takes it only if its offset and size fit.  Every other frame is
read by ``header``.

Invariant: an object serves one link at a time; ``shake_hands`` begins the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

import attrs

from hastore.wire.ha_frames import HEADER, HEADER_SIZE, check_header, encode_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.ha.log_fetch import GroupLogReader
    from hastore.store.commit_log import CommitLog
    from hastore.store.node_identity import Unverified

T = TypeVar("T")

# The offset that ``plain_header`` returns for a frame that ``header`` must read: none is there.
NOT_PLAIN: Final = (-1, 0)


class Exchange(Protocol):
    """Sends a request in one write, and waits for the answer."""

    async def __call__(
        self, request: bytes, decode: Callable[[memoryview], tuple[T, int] | None]
    ) -> T:
        """Return what ``decode`` makes of the answer's bytes.

        ``decode`` returns the value and its size, None while it is not whole.  Raises ProtocolError
        if no answer comes in time.
        """


@attrs.frozen(kw_only=True)
class LinkStart:
    """Where a link begins, by the epochs of both logs.

    The logs should agree below ``point``; what our log has at or after it must be cut, once bytes
    below it have been compared.  The first report is not below ``asked_min``.
    """

    point: int
    asked_min: int
    epoch_ends: frozenset[int] = frozenset()  # where frames end, and the master's log goes on


class SlaveFraming(Protocol):
    """The parts of the protocol that a slave needs."""

    header_size: int  # bytes before a frame's body
    # Whether the first reports 0, 1 and 2 say where a slave without a log begins.
    has_start_reports: bool
    # Whether a heartbeat is sent at the end of the master's log only.
    heartbeats_name_end: bool
    # Whether a heartbeat is answered with a report.
    answers_heartbeats: bool

    @property
    def unverified(self) -> Unverified | None:
        """The part of our log that may differ from the master's; None: no part."""

    @property
    def plain_header(self) -> Callable[[memoryview, int], tuple[int, int]]:
        """A function that returns offset and body size of the header at a position.

        NOT_PLAIN if ``header`` must read it.
        """

    def header(self, view: memoryview, position: int) -> tuple[int, int]:
        """Return offset and body size of the header there.

        Raises ProtocolError for a header that no master sends on this link.
        """

    def encode_report(self, physic_offset: int) -> bytes:
        """Return a report's bytes."""

    def log_reader(self) -> GroupLogReader | None:
        """Return who reads the master's log beside the link; None: the protocol needs nobody."""

    async def shake_hands(self, exchange: Exchange, log: CommitLog) -> LinkStart | None:
        """Begin a link; None: our log counts up to its end."""

    def needs_epochs(self, physic_offset: int, body_size: int) -> bool:
        """Return whether ``store_epochs`` must be called before this frame is appended."""

    async def store_epochs(self) -> None:
        """Store durably which epochs will have written the log."""

    def appended(self, end_offset: int) -> bool:
        """Count the frames read so far as appended: our log has the stream up to ``end_offset``.

        Return whether the confirm offset has risen.
        """


@final
class ClassicFraming:
    """RocketMQ's protocol without a controller: no handshake, no epochs."""

    header_size: int = HEADER_SIZE
    has_start_reports: bool = True
    heartbeats_name_end: bool = True
    answers_heartbeats: bool = False
    unverified: None = None
    plain_header: Callable[[memoryview, int], tuple[int, int]] = HEADER.unpack_from
    encode_report: Callable[[int], bytes] = staticmethod(encode_report)

    def log_reader(self) -> None:
        """Return None: the protocol does not ask who reads."""

    def header(self, view: memoryview, position: int) -> tuple[int, int]:
        """Return offset and body size.  Raises ProtocolError for a header that no master sends."""
        physic_offset, body_size = HEADER.unpack_from(view, position)
        check_header(physic_offset, body_size)
        return physic_offset, body_size

    async def shake_hands(self, _exchange: Exchange, _log: CommitLog) -> None:
        """Do nothing: the first report is the beginning."""

    def needs_epochs(self, _physic_offset: int, _body_size: int) -> bool:
        """Return False."""
        return False

    async def store_epochs(self) -> None:
        """Do nothing."""

    def appended(self, _end_offset: int) -> bool:
        """Return False: there is none."""
        return False

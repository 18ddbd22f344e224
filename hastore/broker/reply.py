"""What a request may be answered with: a command now, or something that is made in its turn.

A connection's writer makes a ``Later`` when everything before it has been sent, so a client that
asks for much and reads nothing costs one reply's memory, not one a request.

Invariant: what a ZeroCopyReply promises in its head is exactly what its ranges hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hastore.store.log.mapped_file import MappedFile


@attrs.frozen
class FileRange:
    """Bytes of a log file that leave by sendfile."""

    mapped_file: MappedFile
    position: int
    size: int


@attrs.frozen
class ZeroCopyReply:
    """A frame whose body is in the log: ``head`` and then every range."""

    head: bytes
    ranges: tuple[FileRange, ...]


# Bytes are a whole frame.
Answer = RemotingCommand | ZeroCopyReply | bytes


@attrs.frozen
class Later:
    """An answer that is made in its turn; ``make`` gives None where it comes later still.

    One that is large is made when there is room for it among those of all clients.
    """

    make: Callable[[], Awaitable[Answer | None]]
    is_large: bool = True


class ClientConnection(Protocol):
    """The connection that a request came on, as the processors see it."""

    peer: tuple[str, int]

    @property
    def local_address(self) -> tuple[str, int]:
        """Where the client has connected to."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent to it any more."""

    def notify(self, command: RemotingCommand) -> None:
        """Send a one-way command; dropped where the peer does not read."""

    def answer_later(self, later: Later) -> None:
        """Answer a request that was held, in its turn."""


def silently(later: Later) -> Later:
    """Do what is asked, and answer nothing."""

    async def done() -> None:
        await later.make()

    return attrs.evolve(later, make=done)

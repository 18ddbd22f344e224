"""Answers to requests: a command at once, or one that is made when its turn comes.

A connection's writer makes a ``Later`` when everything before it has been sent, so a client that
sends many requests and reads nothing costs the memory of one reply only.

Invariant: the ranges of a ZeroCopyReply hold exactly the bytes that its head announces.
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
    """A frame whose body is in the log: ``head``, then every range."""

    head: bytes
    ranges: tuple[FileRange, ...]


# Bytes: an encoded frame.
Answer = RemotingCommand | ZeroCopyReply | bytes


@attrs.frozen
class Later:
    """An answer that is made in its turn; ``make`` returns None if it will come even later.

    A large one is made when there is room for it among those of all clients.
    """

    make: Callable[[], Awaitable[Answer | None]]
    is_large: bool = True
    is_in_order: bool = False  # of a request that later ones of its connection must not overtake


class ClientConnection(Protocol):
    """The connection that a request came on, as the processors see it."""

    peer: tuple[str, int]

    @property
    def owner(self) -> str:
        """The owner for whose quotas its requests count (``hastore.broker.quotas``)."""

    @property
    def owner_of_offsets(self) -> str | None:
        """The owner for whose quotas its commits count; None for an administrator's."""

    @property
    def local_address(self) -> tuple[str, int]:
        """The address that the client has connected to."""

    @property
    def in_order_waiting(self) -> int:
        """How many of its requests that must not be overtaken wait for their turn."""

    def give_nonce(self) -> str | None:
        """Return the nonce for hastore's own signatures on it; None without access keys."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent to it any more."""

    def notify(self, command: RemotingCommand) -> bool:
        """Send a command that answers nothing, unless the peer does not read; return whether."""

    def answer_later(self, later: Later) -> None:
        """Answer a request that was held, when its turn comes."""


def ready(answer: RemotingCommand) -> Later:
    """Return a ``Later`` of an answer that is small, and known."""

    async def make() -> Answer | None:
        return answer

    return Later(make, is_large=False)


def silently(later: Later) -> Later:
    """Return a ``Later`` that does the same and answers nothing."""

    async def done() -> None:
        await later.make()

    return attrs.evolve(later, make=done)

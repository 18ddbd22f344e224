"""A secret that does not show itself: neither in texts and tracebacks nor in copies."""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING, Final, NoReturn, final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.wire.pieces import Pieces

HIDDEN: Final = "***"


@final
class Secret:
    """A secret key; everything that prints it prints ``***``."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def sign(self, content: bytes) -> str:
        """Return the HMAC-SHA1 of ``content`` as base64 text: RocketMQ's signature."""
        digest = hmac.digest(self._text.encode(), content, "sha1")
        return base64.b64encode(digest).decode()

    def sign_in_pieces(self, parts: Iterable[bytes | memoryview]) -> Pieces[str]:
        """Return the signature of content that comes in parts."""
        return base64.b64encode((yield from self._digest_in_pieces(parts, "sha1"))).decode()

    def authenticate(self, content: bytes) -> bytes:
        """Return the HMAC-SHA256 of ``content``, 32 bytes: hastore's own signature."""
        return hmac.digest(self._text.encode(), content, "sha256")

    def authenticate_in_pieces(self, parts: Iterable[bytes | memoryview]) -> Pieces[bytes]:
        """Return the HMAC-SHA256 of content that comes in parts."""
        return (yield from self._digest_in_pieces(parts, "sha256"))

    def _digest_in_pieces(self, parts: Iterable[bytes | memoryview], name: str) -> Pieces[bytes]:
        digest = hmac.new(self._text.encode(), digestmod=name)
        for part in parts:
            digest.update(part)
            yield len(part)
        return digest.digest()

    def reveal(self) -> str:
        """Return the secret, to write it to a file that only its owner may read."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(Secret)  # says nothing about the text

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

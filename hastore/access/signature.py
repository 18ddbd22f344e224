"""Who signs a request, over what, and whether a signature is right.

RocketMQ's signature (ACL 1.0), which every stock client makes::

    extFields   topic=orders  queueId=0  …  AccessKey=reader  Signature=base64(HMAC-SHA1)
    content     the values of all of them but Signature, by name, without names or separators,
                then the body

It proves that the sender knows the secret, and covers values and body.  It covers neither the
request's code and opaque nor the names of the fields, so a request that was recorded can be sent
again, also as a request of another code, and values can be shifted from one field to the next.

hastore's own signature, which role requests and hastore's own requests need::

    receiver  <--  907, with RocketMQ's signature
              -->  its answer has signatureNonce: 32 hexadecimal digits, another on each connection
              <--  any request, with signatureCounter: above the last one on this connection

    extFields   masterEpoch=8  …  AccessKey=admin  signatureCounter=1
                ownSignature=base64(HMAC-SHA256)
    content     "hastore.request/1", the nonce, the code in decimal digits, the number of fields in
                decimal digits, then the name and the value of each field but ownSignature, by name,
                then the body; each of these after its size in bytes, an int64

Sizes make the content unambiguous: two different requests never have the same.  A request that was
recorded is refused on another connection, because the nonce differs, and on the same one, because
its counter is used.  One nonce a connection with a counter costs one round trip a connection,
where a nonce a request would cost one a request; neither needs a clock or a store.

A peer that gives no nonce knows only RocketMQ's signature.  A request has one of the two, never
both: RocketMQ's could be cut out and sent again.

Sources: RocketMQ 4.9.8 ``AclClientRPCHook``, ``AclUtils``, ``PlainAccessValidator``; hastore's own
is specified in ``docs/formats.md``.

Invariants: a request that ``signed_fields`` has signed passes ``is_signed_by`` with the same key,
and one that ``RequestSigner`` has signed passes ``ReceivedSignatures.admits`` once; comparing takes
the same time wherever two signatures differ.
"""

from __future__ import annotations

import base64
import hmac
import re
import struct
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.errors import ProtocolError
from hastore.quantities import read_digits
from hastore.wire.remoting_codes import ADMIN_REQUESTS, ResponseCode
from hastore.wire.remoting_command import text_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hastore.access.secret import Secret
    from hastore.env.interface import Randomness
    from hastore.wire.pieces import Pieces
    from hastore.wire.remoting_command import RemotingCommand

ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"
# hastore's own, in the answer to a request that was refused for its key or its permissions.
DENIED_FIELD: Final = "accessDenied"
# hastore's own: in the answer to 907, and in each request with hastore's signature.
NONCE_FIELD: Final = "signatureNonce"
COUNTER_FIELD: Final = "signatureCounter"
OWN_SIGNATURE_FIELD: Final = "ownSignature"
PIECE_SIZE: Final = 1024 * 1024  # bytes of a body, signed in some 2 ms
# Added after the signature by RocketMQ's clients, and left out by its brokers.
_UNSIGNED: Final = frozenset({SIGNATURE_FIELD, "_UNIQUE_KEY_QUERY"})
_OWN_LABEL: Final = b"hastore.request/1"
_SIZE: Final = struct.Struct("!q")
_NONCE_WORDS: Final = 4  # of 32 bits
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_COUNTER_MAX: Final = 10**18 - 1  # below 2**63


@attrs.frozen
class AccessKey:
    """A name that everybody may know, and the secret that proves it."""

    name: str
    secret: Secret


# -- RocketMQ's ----------------------------------------------------------------------------------


def signed_content(fields: Mapping[str, Any], body: bytes) -> bytes:
    """Return what RocketMQ's signature covers.

    Raises ProtocolError for a value that is not text.
    """
    return _signed_values(fields) + body


def _signed_values(fields: Mapping[str, Any]) -> bytes:
    names = sorted((name for name in fields if name not in _UNSIGNED), key=_java_order)
    values = (text_field(fields, name) or "" for name in names)
    return "".join(values).encode(errors="replace")


def _java_order(name: str) -> bytes:
    """Return what sorts names as Java does: by their UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")


def signed_fields(key: AccessKey, fields: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """Return a request's ext fields with the key's name and RocketMQ's signature."""
    signed = {**fields, ACCESS_KEY_FIELD: key.name}
    signed[SIGNATURE_FIELD] = key.secret.sign(signed_content(signed, body))
    return signed


def is_signed_by(secret: Secret, fields: Mapping[str, Any], body: bytes) -> bool:
    """Whether a request has RocketMQ's signature of ``secret``.

    Raises ProtocolError for a value that is no text.
    """
    return _is_signature(secret.sign(signed_content(fields, body)), fields)


def is_signed_in_pieces(secret: Secret, fields: Mapping[str, Any], body: bytes) -> Pieces[bool]:
    """Return what ``is_signed_by`` returns, a MiB of the body in a piece.

    Raises ProtocolError for a value that is no text.
    """
    expected = yield from secret.sign_in_pieces(_parts(_signed_values(fields), body))
    return _is_signature(expected, fields)


def _parts(head: bytes, body: bytes) -> Iterator[bytes | memoryview]:
    yield head
    view = memoryview(body)
    for begin in range(0, len(body), PIECE_SIZE):
        yield view[begin : begin + PIECE_SIZE]


def _is_signature(expected: str, fields: Mapping[str, Any]) -> bool:
    given = text_field(fields, SIGNATURE_FIELD) or ""
    return hmac.compare_digest(expected.encode(), given.encode(errors="replace"))


# -- hastore's own -------------------------------------------------------------------------------


def own_content(nonce: str, code: int, fields: Mapping[str, Any], body: bytes) -> bytes:
    """Return what hastore's own signature covers: all but ``ownSignature``, unambiguously.

    Raises ProtocolError for a name or a value that is not UTF-8 text.  A number is not text here:
    a receiver could read one otherwise than the text of the same digits.
    """
    return _own_head(nonce, code, fields, len(body)) + body


def _own_head(nonce: str, code: int, fields: Mapping[str, Any], body_size: int) -> bytes:
    """Return what hastore's own signature covers, up to the body."""
    names = sorted(name for name in fields if name != OWN_SIGNATURE_FIELD)
    parts = [_OWN_LABEL, nonce.encode(), b"%d" % code, b"%d" % len(names)]
    try:
        for name in names:
            value = fields[name]
            if type(value) is not str:
                msg = f"ext field {name} is signed, and is not text"
                raise ProtocolError(msg)
            parts += (name.encode(), value.encode())
    except UnicodeEncodeError as error:
        msg = "an ext field is signed, and is not UTF-8 text"
        raise ProtocolError(msg) from error
    sized = [piece for part in parts for piece in (_SIZE.pack(len(part)), part)]
    return b"".join((*sized, _SIZE.pack(body_size)))


def own_signature(
    secret: Secret, nonce: str, code: int, fields: Mapping[str, Any], body: bytes
) -> str:
    """Return hastore's own signature of a request.  Raises ProtocolError as ``own_content``."""
    digest = secret.authenticate(own_content(nonce, code, fields, body))
    return base64.b64encode(digest).decode()


def own_signature_in_pieces(
    secret: Secret, nonce: str, code: int, fields: Mapping[str, Any], body: bytes
) -> Pieces[str]:
    """Return what ``own_signature`` returns, a MiB of the body in a piece."""
    parts = _parts(_own_head(nonce, code, fields, len(body)), body)
    return base64.b64encode((yield from secret.authenticate_in_pieces(parts))).decode()


def has_own_signature(fields: Mapping[str, Any]) -> bool:
    """Whether a request claims hastore's own signature: then RocketMQ's does not count."""
    return OWN_SIGNATURE_FIELD in fields


# What a port answers to 907 for good: it serves the request, or does not know it.
_ANSWERED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})


@final
@attrs.define(eq=False)
class RequestSigner:
    """Signs what one end of a connection asks: in hastore's own way once the peer has a nonce."""

    key: AccessKey | None  # None: nothing is signed
    _nonce: str | None = attrs.field(default=None, init=False)
    _has_asked: bool = attrs.field(default=False, init=False)
    _counter: int = attrs.field(default=0, init=False)  # of the last request

    def needs_nonce(self, code: int) -> bool:
        """Whether the peer should be asked for its nonce (907) before a request is signed."""
        return self.key is not None and not self._has_asked and code in ADMIN_REQUESTS

    def use_nonce_of(self, answer: RemotingCommand | None) -> None:
        """Take the nonce that an answer to 907 has, if it has one; a connection's never changes.

        A refusal says nothing of nonces, so the peer is asked again before the next request.
        """
        if answer is None or answer.code not in _ANSWERED:
            return
        self._has_asked = True
        nonce = answer.ext_fields.get(NONCE_FIELD)
        if self._nonce is None and isinstance(nonce, str) and _NONCE.fullmatch(nonce):
            self._nonce = nonce

    def signed(self, code: int, fields: Mapping[str, Any], body: bytes) -> Mapping[str, Any]:
        """Return a request's ext fields, signed.  Requests are sent in the order of the calls."""
        key, nonce = self.key, self._nonce
        if key is None:
            return fields
        if nonce is None or code not in ADMIN_REQUESTS:
            return signed_fields(key, fields, body)
        self._counter += 1
        signed = {**fields, ACCESS_KEY_FIELD: key.name, COUNTER_FIELD: str(self._counter)}
        signed[OWN_SIGNATURE_FIELD] = own_signature(key.secret, nonce, code, signed, body)
        return signed


@final
@attrs.define(eq=False)
class ReceivedSignatures:
    """What the receiving end of a connection knows of hastore's signatures on it."""

    nonce: str
    _counter: int = attrs.field(default=0, init=False)  # the highest with a right signature

    @classmethod
    def begin(cls, randomness: Randomness) -> ReceivedSignatures:
        """Begin a connection with a nonce of 128 random bits."""
        words = (int(randomness.random() * (1 << 32)) for _ in range(_NONCE_WORDS))
        return cls("".join(f"{word:08x}" for word in words))

    def admits(self, secret: Secret, request: RemotingCommand) -> bool:
        """Whether a request has hastore's signature of ``secret``, and was not here before.

        Raises ProtocolError for names or values that are not text.
        """
        code, fields, body = request.code, request.ext_fields, request.body
        return self._takes(own_signature(secret, self.nonce, code, fields, body), fields)

    def admits_in_pieces(self, secret: Secret, request: RemotingCommand) -> Pieces[bool]:
        """Return what ``admits`` returns, a MiB of the body in a piece.

        Raises ProtocolError for names or values that are not text.
        """
        code, fields, body = request.code, request.ext_fields, request.body
        expected = yield from own_signature_in_pieces(secret, self.nonce, code, fields, body)
        return self._takes(expected, fields)

    def _takes(self, expected: str, fields: Mapping[str, Any]) -> bool:
        given = text_field(fields, OWN_SIGNATURE_FIELD) or ""
        if not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
            return False
        counter = read_digits(text_field(fields, COUNTER_FIELD) or "")
        if counter is None or not self._counter < counter <= _COUNTER_MAX:
            return False
        self._counter = counter
        return True

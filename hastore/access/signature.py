"""RocketMQ's ACL 1.0: who signs a request, over what, and whether a signature is right.

::

    extFields   topic=orders  queueId=0  …  AccessKey=reader  Signature=base64(HMAC-SHA1)
    content     the values of all of them but Signature, by name, without names or separators,
                then the body

It proves that the sender knows the secret, and covers values and body.  It covers neither the
request's code and opaque nor the names of the fields, so a request that was recorded can be sent
again, and values can be shifted from one field to the next.  Only TLS helps against both.

Sources: RocketMQ 4.9.8 ``AclClientRPCHook``, ``AclUtils``, ``PlainAccessValidator``.

Invariants: a request that ``signed_fields`` has signed passes ``is_signed_by`` with the same key;
comparing takes the same time wherever two signatures differ.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.wire.remoting_command import text_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.access.secret import Secret

ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"
# hastore's own, in the answer to a request that was refused for its key or its permissions.
DENIED_FIELD: Final = "accessDenied"
# Added after the signature by RocketMQ's clients, and left out by its brokers.
_UNSIGNED: Final = frozenset({SIGNATURE_FIELD, "_UNIQUE_KEY_QUERY"})


@attrs.frozen
class AccessKey:
    """A name that everybody may know, and the secret that proves it."""

    name: str
    secret: Secret


def signed_content(fields: Mapping[str, Any], body: bytes) -> bytes:
    """Return what a signature covers.  Raises ProtocolError for a value that is no text."""
    names = sorted((name for name in fields if name not in _UNSIGNED), key=_java_order)
    values = (text_field(fields, name) or "" for name in names)
    return "".join(values).encode(errors="replace") + body


def _java_order(name: str) -> bytes:
    """Return what sorts names as Java does: by their UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")


def signed_fields(key: AccessKey, fields: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """Return a request's ext fields with the key's name and the signature."""
    signed = {**fields, ACCESS_KEY_FIELD: key.name}
    signed[SIGNATURE_FIELD] = key.secret.sign(signed_content(signed, body))
    return signed


def is_signed_by(secret: Secret, fields: Mapping[str, Any], body: bytes) -> bool:
    """Whether a request has the signature of ``secret``.

    Raises ProtocolError for a value that is no text.
    """
    given = text_field(fields, SIGNATURE_FIELD) or ""
    expected = secret.sign(signed_content(fields, body))
    return hmac.compare_digest(expected.encode(), given.encode(errors="replace"))

"""Signed requests, and the answer to one that was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.access.signature import DENIED_FIELD, signed_fields
from hastore.errors import AccessDeniedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.access.signature import AccessKey
    from hastore.wire.remoting_command import RemotingCommand

_HINT: Final = (
    "a command takes its key from the file that HASTORE_ACCESS_KEY_FILE names, a program from"
    " access_key=; hastore acl explain says what a key may do"
)


def with_signature(
    key: AccessKey | None, fields: Mapping[str, Any], body: bytes
) -> Mapping[str, Any]:
    """Return a request's ext fields, signed if there is a key."""
    return fields if key is None else signed_fields(key, fields, body)


def is_denied(response: RemotingCommand) -> bool:
    """Whether a hastore node has refused a request for its key or its permissions."""
    return DENIED_FIELD in response.ext_fields


def access_denied(response: RemotingCommand, where: str) -> AccessDeniedError:
    """Return the error for such an answer."""
    remark = response.remark or "access denied"
    return AccessDeniedError(f"{where}: {remark}", code=response.code, hint=_HINT)

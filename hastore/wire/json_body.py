"""A response whose body is JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from hastore.wire.remoting_command import RemotingCommand


def json_response(request: RemotingCommand, value: dict[str, Any]) -> RemotingCommand:
    """Answer ``request`` with success and ``value``."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return request.response(ResponseCode.SUCCESS, body=body)

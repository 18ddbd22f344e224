"""Read JSON as RocketMQ's peers write it.

Java's fastjson writes maps with integer keys bare (``{0:"host:port"}``), which is not
JSON; the C++ client ends a body with a newline.  Both are read here; hastore writes plain JSON.

Invariant: any bytes yield a value or a ProtocolError, in time linear in their number.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from hastore.errors import ProtocolError

# A string (kept), or a bare integer key: after { or , and before a colon.  An unclosed string
# matches up to the end of the text; otherwise each quote in it would be tried again.
_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|([{,]\s*)(-?[0-9]+)(\s*:)', re.DOTALL)


def _quote(match: re.Match[str]) -> str:
    before, digits, after = match.groups()
    return match[0] if digits is None else f'{before}"{digits}"{after}'


def loads(data: bytes, what: str) -> Any:
    """Read ``data``.  Raises ProtocolError with ``what`` and the position of the fault."""
    try:
        text = data.decode()
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(_STRING_OR_BARE_KEY.sub(_quote, text))
    except (ValueError, RecursionError) as error:
        msg = f"{what} is not JSON: {error}"
        raise ProtocolError(msg) from error


def loads_object(data: bytes, what: str) -> dict[str, Any]:
    """Read one JSON object.  Raises ProtocolError."""
    value = loads(data, what)
    if not isinstance(value, dict):
        msg = f"{what} is not a JSON object but {type(value).__name__}"
        raise ProtocolError(msg)
    return value

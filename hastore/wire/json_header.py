"""The JSON header of a remoting frame.

::

    {"code":310,"extFields":{"a":"group",...},"flag":0,"language":"JAVA","opaque":7,
     "remark":"...","serializeTypeCurrentRPC":"JSON","version":409}

Read liberally: a field may be missing or null (``remark`` often is), a number may be text, unknown
fields are ignored.  Bytes that are not UTF-8 become U+FFFD, as in Java: only the request that has
them may be refused.  Fields are written in fastjson's order.  Source: RocketMQ 4.9.8
``RemotingCommand``, ``RemotingSerializable``.

Invariant: any bytes yield a command or a ProtocolError.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hastore.errors import ProtocolError
from hastore.wire.remoting_codes import LANGUAGE, SerializeType
from hastore.wire.remoting_command import RemotingCommand, integer_field

if TYPE_CHECKING:
    from collections.abc import Mapping

_raw_decode: Final = json.JSONDecoder().raw_decode
_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode
_LONG: Final = 4_096  # bytes
_VALUES_MAX: Final = 64
_NO_FIELDS: Final[Mapping[str, Any]] = {}


def encode_json_header(command: RemotingCommand) -> bytes:
    """Return the header of ``command``."""
    fields: dict[str, Any] = {"code": command.code}
    if command.ext_fields:
        fields["extFields"] = command.ext_fields
    fields["flag"] = command.flag
    fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    return _dumps(fields).encode()


def _check_values(header: bytes) -> None:
    """Raise ProtocolError for a long header full of objects and lists, of which none has a use.

    They cost more than other text: 21,000 in 64 KiB took 6 ms, and the garbage collector then
    looked at them, too.
    """
    if header.count(b"[") + header.count(b"{") > _VALUES_MAX:
        # A property may have any text.  A regular expression for it takes 4 ms, and this 0.7.
        unescaped = header.replace(b"\\\\", b"").replace(b'\\"', b"")
        bare = b"".join(unescaped.split(b'"')[::2])
        if bare.count(b"[") + bare.count(b"{") > _VALUES_MAX:
            msg = f"the header has more than {_VALUES_MAX} objects and lists"
            raise ProtocolError(msg)


def _parse(header: bytes) -> dict[str, Any]:
    if len(header) > _LONG:
        _check_values(header)
    try:
        text = header.decode(errors="replace").lstrip(" \t\n\r")
        fields, end = _raw_decode(text)
        if end != len(text) and not text[end:].isspace():
            msg = f"the header has {len(text) - end} characters after its JSON"
            raise ProtocolError(msg)
    except (ValueError, RecursionError) as error:
        msg = f"the header is not JSON: {error}"
        raise ProtocolError(msg) from error
    if type(fields) is not dict:
        msg = f"the header is not a JSON object but {type(fields).__name__}"
        raise ProtocolError(msg)
    return fields


def decode_json_header(header: bytes, body: bytes) -> RemotingCommand:
    """Read a header.  Raises ProtocolError with the fault."""
    fields = _parse(header)
    ext_fields = fields.get("extFields")
    if type(ext_fields) is not dict:
        if ext_fields:
            msg = f"extFields is not a JSON object but {type(ext_fields).__name__}"
            raise ProtocolError(msg)
        ext_fields = _NO_FIELDS
    remark = fields.get("remark")
    if remark is not None and type(remark) is not str:
        remark = str(remark)
    return RemotingCommand(
        code=_small_integer(fields, "code", None),
        opaque=_small_integer(fields, "opaque", 0),
        flag=_small_integer(fields, "flag", 0),
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        language=str(fields.get("language", LANGUAGE)),
        version=_small_integer(fields, "version", 0),
        serialize_type=SerializeType.JSON,
    )


def _small_integer(fields: dict[str, Any], name: str, default: int | None) -> int:
    value = fields.get(name)
    if type(value) is int and -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return value
    try:
        return integer_field(fields, name, default)
    except ProtocolError as error:
        msg = str(error).replace("ext field", "header field")
        raise ProtocolError(msg) from error

"""The binary header of a remoting frame, serialize type ROCKETMQ.

::

    int16 code | int8 language | int16 version | int32 opaque | int32 flag
    int32 remark size | remark (UTF-8)
    int32 ext size    | { int16 key size | key | int32 value size | value } ...

All big-endian; every size is checked against the bytes left.  A code above 32 767 does not fit
(RocketMQ truncates it; hastore raises ProtocolError).  Bytes of a text that are not UTF-8 become
U+FFFD, as in Java: only the request that has them may be refused.  Source: RocketMQ 4.9.8
``RocketMQSerializable``.

Invariant: any bytes yield a command or a ProtocolError.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from hastore.errors import ProtocolError
from hastore.wire.remoting_codes import (
    CODE_MAX,
    CODE_MIN,
    LANGUAGE_NUMBERS,
    LANGUAGES,
    SerializeType,
)
from hastore.wire.remoting_command import RemotingCommand, required_text_field

_FIXED: Final = struct.Struct("!hbhiii")  # up to and including the remark size
_INT16: Final = struct.Struct("!h")
_INT32: Final = struct.Struct("!i")
_KEY_SIZE_MAX: Final = 0x7FFF
_OTHER: Final = "OTHER"


def encode_fields(ext_fields: dict[str, str]) -> bytes:
    """Return the bytes of ext fields, without their size.  Raises ProtocolError."""
    parts: list[bytes] = []
    for key, value in ext_fields.items():
        key_bytes = key.encode()
        value_bytes = value.encode(errors="replace")
        if len(key_bytes) > _KEY_SIZE_MAX:
            msg = f"an ext field name of {len(key_bytes)} bytes does not fit a binary header"
            raise ProtocolError(msg)
        parts += (
            _INT16.pack(len(key_bytes)),
            key_bytes,
            _INT32.pack(len(value_bytes)),
            value_bytes,
        )
    return b"".join(parts)


def encode_rocketmq_header(command: RemotingCommand) -> bytes:
    """Return the header of ``command`` without null ext fields.  Raises ProtocolError."""
    if not CODE_MIN <= command.code <= CODE_MAX:
        msg = f"code {command.code} does not fit a binary header"
        raise ProtocolError(msg)
    given = command.ext_fields
    fields = encode_fields(
        {key: required_text_field(given, key) for key in given if given[key] is not None}
    )
    remark = (command.remark or "").encode(errors="replace")
    fixed = _FIXED.pack(
        command.code,
        LANGUAGE_NUMBERS.get(command.language, LANGUAGE_NUMBERS[_OTHER]),
        command.version,
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((fixed, remark, _INT32.pack(len(fields)), fields))


def _decode_fields(header: bytes, position: int) -> dict[str, Any]:
    end = len(header)
    fields: dict[str, Any] = {}
    key_size_at, value_size_at = _INT16.unpack_from, _INT32.unpack_from
    while position < end:
        key_begin = position + 2
        key_end = key_begin + key_size_at(header, position)[0]
        value_begin = key_end + 4
        if key_end < key_begin or value_begin > end:
            msg = f"an ext field name at byte {position} of {end} of the header has no room"
            raise ProtocolError(msg)
        position = value_begin + value_size_at(header, key_end)[0]
        if position < value_begin or position > end:
            msg = f"an ext field value at byte {key_end} of {end} of the header has no room"
            raise ProtocolError(msg)
        name = header[key_begin:key_end].decode(errors="replace")
        fields[name] = header[value_begin:position].decode(errors="replace")
    return fields


def decode_rocketmq_header(header: bytes, body: bytes) -> RemotingCommand:
    """Read a header.  Raises ProtocolError with the fault and its position."""
    end = len(header)
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        fields_at = _FIXED.size + remark_size + 4
        if remark_size < 0 or fields_at > end:
            msg = f"a remark of {remark_size} bytes in a header of {end}"
            raise ProtocolError(msg)
        (fields_size,) = _INT32.unpack_from(header, fields_at - 4)
        if fields_at + fields_size != end:
            msg = f"{fields_size} bytes of ext fields where {end - fields_at} are"
            raise ProtocolError(msg)
        remark_bytes = header[_FIXED.size : fields_at - 4]
        remark = remark_bytes.decode(errors="replace") if remark_size else None
        ext_fields = _decode_fields(header, fields_at)
    except struct.error as error:
        msg = f"a binary header of {end} bytes ends inside a field"
        raise ProtocolError(msg) from error
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else _OTHER,
        version=version,
        serialize_type=SerializeType.ROCKETMQ,
    )

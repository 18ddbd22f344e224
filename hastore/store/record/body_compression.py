"""A message's body as its producer meant it: decompressed, if the producer compressed it.

::

    sysFlag   bit 0: compressed   bits 8-10: how
              0, 3  zlib (0: older versions)    1  lz4, frame format    2  zstd

Stock clients compress bodies above 4 KiB.  lz4 and zstd are RocketMQ 5's, and need the packages of
the extra ``hastore[codecs]``.  A body that cannot be decoded stays as it is stored, with its flags,
and the result says why.  Source: RocketMQ 5.3.3 ``CompressionType``, ``MessageDecoder``.

This is the only decoder: consumers, commands, exports and tables use it.

Invariant: any bytes are decoded or returned.  A piece of the work makes at most some 8 MiB, and no
more than one piece above ``size_max`` is ever held.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from hastore.store.record.layout import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK
from hastore.wire.pieces import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.message import StoredMessage
    from hastore.wire.pieces import Pieces

BODY_SIZE_MAX: Final = 64 * 1024 * 1024  # of a decoded body; RocketMQ stores 4 MiB by default
_PIECE_SIZE: Final = 1024 * 1024
# A zstd block of 4 bytes may stand for 128 KiB, and its decoder returns all that its input makes.
_ZSTD_INPUT_SIZE: Final = 256


class DecodedBody(NamedTuple):
    """The outcome: a body, and the sysFlag that describes it."""

    body: bytes
    sys_flag: int  # without the bits of compression, if the body was decoded
    fault: str | None  # why the body is still compressed; None if it is not


def decoded(message: StoredMessage) -> StoredMessage:
    """Return a message with its body decoded, or with the reason why it is not."""
    return at_once(decoded_in_pieces(message))


def decoded_in_pieces(message: StoredMessage) -> Pieces[StoredMessage]:
    """Do the same in pieces.  A message that is not compressed, or was tried, is returned."""
    if not message.sys_flag & COMPRESSED_FLAG or message.body_fault is not None:
        return message
    body, sys_flag, fault = yield from decode_body_in_pieces(message.body, message.sys_flag)
    return attrs.evolve(message, body=body, sys_flag=sys_flag, body_fault=fault)


def decode_body(body: bytes, sys_flag: int, *, size_max: int = BODY_SIZE_MAX) -> DecodedBody:
    """Decode a record's body, at most ``size_max`` bytes, in one go."""
    if not sys_flag & COMPRESSED_FLAG:
        return DecodedBody(body, sys_flag, None)
    return at_once(decode_body_in_pieces(body, sys_flag, size_max=size_max))


def decode_body_in_pieces(
    body: bytes, sys_flag: int, *, size_max: int = BODY_SIZE_MAX
) -> Pieces[DecodedBody]:
    """Do the same in pieces, so that the event loop can run meanwhile."""
    if not sys_flag & COMPRESSED_FLAG:
        return DecodedBody(body, sys_flag, None)
    number = (sys_flag & COMPRESSION_TYPE_MASK) >> 8
    if number not in _CODECS:
        return DecodedBody(body, sys_flag, f"its compression, type {number}, is not known")
    kind, decode = _CODECS[number]
    parts: list[bytes] = []
    size = reported = 0
    try:
        for part in decode(body):
            size += len(part)
            if size > size_max:
                return DecodedBody(body, sys_flag, f"it decodes to more than {size_max} bytes")
            parts.append(part)
            if size - reported >= _PIECE_SIZE:
                yield size - reported
                reported = size
    except ModuleNotFoundError:
        return DecodedBody(body, sys_flag, f"{kind} needs: {_install_command()}")
    except _CutOffError:
        return DecodedBody(body, sys_flag, f"its {kind} data ends too early")
    # lz4 raises RuntimeError, the others their own.
    except (zlib.error, RuntimeError, ValueError, MemoryError, _zstd_error()) as error:
        return DecodedBody(body, sys_flag, f"it is not {kind}: {error}")
    flags = sys_flag & ~(COMPRESSED_FLAG | COMPRESSION_TYPE_MASK)
    return DecodedBody(b"".join(parts), flags, None)


@functools.cache
def _install_command() -> str:
    from hastore.install_source import install_command  # noqa: PLC0415 - it costs 30 ms

    return install_command("codecs")


class _CutOffError(Exception):
    """The compressed bytes end before the body does."""


def _zlib_parts(data: bytes) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    while not inflater.eof:
        part = inflater.decompress(data, _PIECE_SIZE)
        data = inflater.unconsumed_tail
        if not part and not inflater.eof:
            raise _CutOffError
        yield part


def _lz4_parts(data: bytes) -> Iterator[bytes]:
    inflater = importlib.import_module("lz4.frame").LZ4FrameDecompressor()
    while not inflater.eof:
        part = inflater.decompress(data, _PIECE_SIZE)
        data = b""  # it keeps what it has not decoded
        if not part and not inflater.eof:
            raise _CutOffError
        yield part


def _zstd_parts(data: bytes) -> Iterator[bytes]:
    zstandard = importlib.import_module("zstandard")
    inflater = zstandard.ZstdDecompressor(max_window_size=BODY_SIZE_MAX).decompressobj()
    view = memoryview(data)
    for start in range(0, len(view), _ZSTD_INPUT_SIZE):
        yield inflater.decompress(view[start : start + _ZSTD_INPUT_SIZE])
        if inflater.eof:
            return
    raise _CutOffError


def _zstd_error() -> type[Exception]:
    """Return the error of the zstd library, or zlib's if that library is not installed."""
    try:
        error: type[Exception] = importlib.import_module("zstandard").ZstdError
    except ModuleNotFoundError:
        return zlib.error
    return error


_CODECS: Final[dict[int, tuple[str, Callable[[bytes], Iterator[bytes]]]]] = {
    0: ("zlib", _zlib_parts),
    1: ("lz4", _lz4_parts),
    2: ("zstd", _zstd_parts),
    3: ("zlib", _zlib_parts),
}

"""A message's body as its producer meant it: decompressed, if the producer compressed it.

::

    sysFlag   bit 0: compressed   bits 8-10: how
              0, 3  zlib (0: older versions)    1  lz4, frame format    2  zstd

Stock clients compress bodies above 4 KiB.  lz4 and zstd are RocketMQ 5's, and need the packages of
the extra ``hastore[codecs]``.  A body that cannot be decoded stays as it is stored, with its flags,
and the result says why.  Source: RocketMQ 5.3.3 ``CompressionType``, ``MessageDecoder``.

This is the only decoder: consumers, commands, exports and tables use it.

Invariant: any bytes are decoded or returned.  A piece of the work reads at most 64 KiB and makes
at most some 9 MiB, and no more than 8 MiB above ``size_max`` are made.  A body is held once.
"""

from __future__ import annotations

import functools
import importlib
import io
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from hastore.store.record.layout import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK
from hastore.wire.pieces import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.message import StoredMessage
    from hastore.wire.pieces import Pieces

BODY_SIZE_MAX: Final = 64 * 1024 * 1024  # of a decoded body; RocketMQ stores 4 MiB by default
_PIECE_SIZE: Final = 1024 * 1024  # of what is made
_INPUT_SIZE: Final = 64 * 1024  # of what is read at once, and in a piece
# A zstd block of 4 bytes may stand for 128 KiB, and its decoder returns all that its input makes.
_ZSTD_INPUT_SIZE: Final = 256


class DecodedBody(NamedTuple):
    """The outcome: a body, the sysFlag that describes it, and what decoding it has cost."""

    body: bytes
    sys_flag: int  # without the bits of compression, if the body was decoded
    fault: str | None  # why the body is still compressed; None if it is not
    decoded_size: int  # bytes that were decoded, also if there is a fault


def decoded(message: StoredMessage) -> StoredMessage:
    """Return a message with its body decoded, or with the reason why it is not.

    A message that is not compressed, or was tried, is returned.
    """
    if not message.sys_flag & COMPRESSED_FLAG or message.body_fault is not None:
        return message
    return with_body(message, decode_body(message.body, message.sys_flag))


def with_body(message: StoredMessage, one: DecodedBody) -> StoredMessage:
    """Return a message with the outcome of decoding its body."""
    return attrs.evolve(message, body=one.body, sys_flag=one.sys_flag, body_fault=one.fault)


def decode_body(body: bytes, sys_flag: int, *, size_max: int = BODY_SIZE_MAX) -> DecodedBody:
    """Decode a record's body, at most ``size_max`` bytes, in one go."""
    if not sys_flag & COMPRESSED_FLAG:
        return DecodedBody(body, sys_flag, None, 0)
    return at_once(decode_body_in_pieces(body, sys_flag, size_max=size_max))


def decode_body_in_pieces(
    body: bytes, sys_flag: int, *, size_max: int = BODY_SIZE_MAX
) -> Pieces[DecodedBody]:
    """Do the same in pieces, so that the event loop can run meanwhile."""
    if not sys_flag & COMPRESSED_FLAG:
        return DecodedBody(body, sys_flag, None, 0)
    number = (sys_flag & COMPRESSION_TYPE_MASK) >> 8
    if number not in _CODECS:
        return DecodedBody(body, sys_flag, f"its compression, type {number}, is not known", 0)
    kind, decode = _CODECS[number]
    source = _Source(body)
    decoded_body = io.BytesIO()  # gives its bytes away without a copy
    size = size_reported = input_reported = 0
    try:
        for part in decode(source):
            size += len(part)
            if size > size_max:
                return DecodedBody(
                    body, sys_flag, f"it decodes to more than {size_max} bytes", size
                )
            decoded_body.write(part)
            made, read = size - size_reported, source.position - input_reported
            if made >= _PIECE_SIZE or read >= _INPUT_SIZE:
                yield made + read
                size_reported, input_reported = size, source.position
    except ModuleNotFoundError:
        fault = f"{kind} needs: {_install_command()}"
    except _CutOffError:
        fault = f"its {kind} data ends too early"
    # lz4 raises RuntimeError, the others their own.
    except (zlib.error, RuntimeError, ValueError, MemoryError, _zstd_error()) as error:
        fault = f"it is not {kind}: {error}"
    else:
        flags = sys_flag & ~(COMPRESSED_FLAG | COMPRESSION_TYPE_MASK)
        return DecodedBody(decoded_body.getvalue(), flags, None, size)
    return DecodedBody(body, sys_flag, fault, size)


@functools.cache
def _install_command() -> str:
    from hastore.install_source import install_command  # noqa: PLC0415 - it costs 30 ms

    return install_command("codecs")


class _CutOffError(Exception):
    """The compressed bytes end before the body does."""


@final
class _Source:
    """Compressed bytes, read from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.position = 0  # of the next byte to read

    def chunks(self, size: int) -> Iterator[memoryview]:
        """Yield the bytes in chunks of at most ``size``."""
        while self.position < len(self._data):
            chunk = self._data[self.position : self.position + size]
            self.position += len(chunk)
            yield chunk


def _zlib_parts(source: _Source) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    part = b""
    for chunk in source.chunks(_INPUT_SIZE):
        part = inflater.decompress(chunk, _PIECE_SIZE)
        yield part
        while inflater.unconsumed_tail:
            part = inflater.decompress(inflater.unconsumed_tail, _PIECE_SIZE)
            yield part
        if inflater.eof:
            return
    while part and not inflater.eof:  # a long match may be left
        part = inflater.decompress(b"", _PIECE_SIZE)
        yield part
    if not inflater.eof:
        raise _CutOffError


def _lz4_parts(source: _Source) -> Iterator[bytes]:
    inflater = importlib.import_module("lz4.frame").LZ4FrameDecompressor()
    for chunk in source.chunks(_INPUT_SIZE):
        yield inflater.decompress(chunk, _PIECE_SIZE)
        while not inflater.needs_input and not inflater.eof:
            yield inflater.decompress(b"", _PIECE_SIZE)  # it keeps what it has not decoded
        if inflater.eof:
            return
    raise _CutOffError


def _zstd_parts(source: _Source) -> Iterator[bytes]:
    zstandard = importlib.import_module("zstandard")
    inflater = zstandard.ZstdDecompressor(max_window_size=BODY_SIZE_MAX).decompressobj()
    for chunk in source.chunks(_ZSTD_INPUT_SIZE):
        yield inflater.decompress(chunk)
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


_CODECS: Final[dict[int, tuple[str, Callable[[_Source], Iterator[bytes]]]]] = {
    0: ("zlib", _zlib_parts),
    1: ("lz4", _lz4_parts),
    2: ("zstd", _zstd_parts),
    3: ("zlib", _zlib_parts),
}

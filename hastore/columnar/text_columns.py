"""Pieces of one buffer as an Arrow column: one gather in C++, no Python object a piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def binary_take(data: bytes | pa.Buffer, starts: Array, ends: Array) -> pa.BinaryArray:
    """Copy ``data[start:end]`` of each row into one array.

    ``data`` holds less than 2 GiB.  The pieces may lie in any order and need not touch.
    """
    buffer = pa.py_buffer(data) if isinstance(data, bytes) else data
    count = len(starts)
    # An array of the pieces and the gaps between them, of which every second value is taken.  If a
    # piece begins before the last one ended, its gap has a negative length, but is never read.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1:-1:2] = ends
    offsets[-1] = buffer.size
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), buffer]
    )
    return whole.take(pa.array(np.arange(0, 2 * count, 2)))


def first_words(data: Array, starts: Array) -> Array:
    """Return the 8 bytes from each start on as a little-endian number, padded with zeros.

    Reads two aligned words a start, three times as quickly as 8 unaligned bytes.
    """
    padded = np.zeros((len(data) + 23) >> 3, "<u8")
    padded.view(np.uint8)[: len(data)] = data
    at = starts >> 3
    shift = (starts & 7).astype(np.uint64) << np.uint64(3)
    words: Array = padded[at] >> shift
    words |= padded[at + 1] << (np.uint64(64) - shift)  # by 64 bits: 0
    return words


def text_column(
    data: bytes | pa.Buffer, starts: Array, ends: Array, *, missing: Array | None = None
) -> pa.Array:
    """Return the pieces as texts, null if ``missing``; bytes that are not UTF-8 become U+FFFD."""
    pieces = binary_take(data, starts, ends)
    try:
        texts = pieces.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([piece.as_py().decode(errors="replace") for piece in pieces], pa.string())
    if missing is not None and missing.any():
        texts = pc.if_else(pa.array(~missing), texts, pa.scalar(None, pa.string()))
    return texts

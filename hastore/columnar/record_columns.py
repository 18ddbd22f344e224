"""A block of records as an Arrow batch with the wanted columns.

Bodies are as stored; ``with_decoded_bodies`` decodes those that their producers compressed, of the
rows that a reader wants.  A block of 3 MiB may decode to gigabytes, so its rows are then several
batches.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hastore.columnar.property_columns import property_pairs
from hastore.columnar.text_columns import binary_take, text_column
from hastore.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from hastore.store.record.body_compression import DecodedBody, decode_body
from hastore.store.record.layout import COMPRESSED_FLAG, HOST_SIZE_V4, PORT
from hastore.store.record.message_codec import address_text
from hastore.store.record.record_check import check_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from hastore.columnar.property_columns import PropertyPairs
    from hastore.columnar.record_block import RecordBlock
    from hastore.columnar.uniform_pairs import UniformPairs

    Array = NDArray[Any]

DECODED_SIZE_MAX: Final = 32 * 1024 * 1024  # decoded for a batch, before its last body
# Years 1 to 9999, which Spark and Python can show; a damaged record may hold any time.
_TIME_MIN_MS: Final = -62_135_596_800_000
_TIME_MAX_MS: Final = 253_402_300_799_999
_OF_PROPERTIES: Final = {
    "tags": PROPERTY_TAGS,
    "keys": PROPERTY_KEYS,
    "uniq_key": PROPERTY_UNIQ_KEY,
}
_OF_HEAD: Final = {
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "body_crc": pa.int32(),
    "size": pa.int32(),
}


def record_batch(
    block: RecordBlock,
    schema: pa.Schema,
    *,
    store: str,
    segment: str,
    available: int,
) -> pa.RecordBatch:
    """Return a block's records; ``available``: bytes from its start to the file's end."""
    count = block.count
    checks = _Checks(block, available, schema.names)
    pairs: PropertyPairs | UniformPairs | None = None
    arrays = []
    for name in schema.names:
        if name in _OF_HEAD:
            array = pa.array(block.head[name], _OF_HEAD[name])
        elif name in _OF_PROPERTIES or name == "properties":
            pairs = pairs or property_pairs(block, of_all="properties" in schema.names)
            array = (
                pairs.map_column() if name == "properties" else pairs.column(_OF_PROPERTIES[name])
            )
        elif name in {"store", "segment"}:
            array = pa.repeat(pa.scalar(store if name == "store" else segment), count)
        elif name in {"crc_ok", "record_ok", "fault"}:
            array = checks.column(name)
        else:
            array = _MAKERS[name](block)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_decoded_bodies(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch with their bodies decoded, in one batch or more.

    It has ``sys_flag``, ``body`` and ``body_fault``.
    """
    sys_flags, bodies = pc.fill_null(batch["sys_flag"], 0).to_numpy(), batch["body"]
    first = size = 0
    decoded: list[DecodedBody] = []
    for row in np.flatnonzero(sys_flags & COMPRESSED_FLAG).tolist():
        if size >= DECODED_SIZE_MAX:
            yield _with_bodies(batch.slice(first, row - first), decoded)
            first, size = row, 0
        one = decode_body(bodies[row].as_py(), int(sys_flags[row]))
        decoded.append(one)
        size += one.decoded_size
    yield _with_bodies(batch.slice(first), decoded)


def _with_bodies(batch: pa.RecordBatch, decoded: list[DecodedBody]) -> pa.RecordBatch:
    """Return a batch with the bodies of its compressed rows; ``decoded`` is empty then."""
    if not decoded:
        return batch
    is_compressed = pc.not_equal(
        pc.bit_wise_and(pc.fill_null(batch["sys_flag"], 0), COMPRESSED_FLAG), 0
    )
    bodies = pa.array([one.body for one in decoded], pa.binary())
    faults = pa.array([one.fault for one in decoded], pa.string())
    decoded.clear()
    new = {
        "body": pc.replace_with_mask(batch["body"], is_compressed, bodies),
        "body_fault": pc.replace_with_mask(batch["body_fault"], is_compressed, faults),
    }
    arrays = [new.get(field.name, batch[field.name]) for field in batch.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _physic_offset(block: RecordBlock) -> pa.Array:
    return pa.array(block.starts + block.physic_offset, pa.int64())


def _topic(block: RecordBlock) -> pa.Array:
    starts = block.topic_starts
    return text_column(block.data, starts, starts + block.topic_sizes)


def _digest(block: RecordBlock) -> pa.Array:
    return pa.array(block.digests(), pa.int32())


def _body(block: RecordBlock) -> pa.Array:
    starts = block.body_starts
    return binary_take(block.data, starts, starts + block.body_sizes)


def _properties_text(block: RecordBlock) -> pa.Array:
    starts = block.properties_starts
    return binary_take(block.data, starts, starts + block.properties_sizes)


def _time(name: str) -> Callable[[RecordBlock], pa.Array]:
    def make(block: RecordBlock) -> pa.Array:
        ms = block.head[name]
        is_odd = (ms < _TIME_MIN_MS) | (ms > _TIME_MAX_MS)
        mask = is_odd if is_odd.any() else None
        us = np.where(is_odd, 0, ms) * 1000 if mask is not None else ms * 1000
        return pa.array(us, pa.timestamp("us", tz="UTC"), mask=mask)

    return make


def _host(index: int) -> Callable[[RecordBlock], pa.Array]:
    """Make a column of "address:port" texts, formatting each distinct host once."""

    def make(block: RecordBlock) -> pa.Array:
        texts = block.hosts[0][index]
        if len(block.hosts) == 1 and len(texts) and texts.dtype.itemsize == HOST_SIZE_V4:
            numbers = texts.view(np.int64)
            if (numbers == numbers[0]).all():  # one node, one producer
                return pa.repeat(pa.scalar(_host_text(texts[0].tobytes())), len(texts))
        names: dict[bytes, int] = {}
        codes = np.zeros(block.count, np.int32)
        for hosts in block.hosts:
            texts = hosts[index]
            if texts.dtype.itemsize == HOST_SIZE_V4:
                texts = texts.view(np.int64)  # numbers are compared more quickly
            different, inverse = np.unique(texts, return_inverse=True)
            ids = [names.setdefault(host.tobytes(), len(names)) for host in different]
            codes[hosts[0]] = np.array(ids, np.int32)[inverse]
        texts = pa.array([_host_text(host) for host in names], pa.string())
        return texts.take(pa.array(codes))

    return make


@functools.lru_cache(maxsize=1024)
def _host_text(host: bytes) -> str:
    address = address_text(host[: -PORT.size])
    (port,) = PORT.unpack(host[-PORT.size :])
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


_MAKERS: Final[dict[str, Callable[[RecordBlock], pa.Array]]] = {
    "physic_offset": _physic_offset,
    "topic": _topic,
    "born_timestamp": _time("born_ms"),
    "store_timestamp": _time("store_ms"),
    "born_host": _host(1),
    "store_host": _host(2),
    "body": _body,
    "body_fault": lambda block: pa.nulls(block.count, pa.string()),
    "digest": _digest,
    "properties_text": _properties_text,
}


class _Checks:
    """The columns ``crc_ok``, ``record_ok`` and ``fault``, computed when first needed."""

    def __init__(self, block: RecordBlock, available: int, names: Sequence[str]) -> None:
        self._block = block
        self._available = available
        self._are_bodies_enough = not {"record_ok", "fault"}.intersection(names)

    def column(self, name: str) -> pa.Array:
        """Return ``crc_ok``, ``record_ok`` or ``fault``."""
        if name == "crc_ok":
            return pa.array(self._fits[0])
        wrong = self._wrong
        if name == "record_ok":
            return pa.array(~wrong)
        if not wrong.any():
            return pa.nulls(self._block.count, pa.string())
        faults: list[str | None] = [None] * self._block.count
        for row in np.flatnonzero(wrong):
            faults[row] = self._fault(int(self._block.starts[row]))
        return pa.array(faults, pa.string())

    @functools.cached_property
    def _fits(self) -> tuple[Array, Array]:
        """Whether bodies match their CRC, and, if a column needs it, records their ``__CRC32#``."""
        if self._are_bodies_enough:
            fits = self._block.body_fits()
            return fits, fits
        return self._block.both_fit()

    @functools.cached_property
    def _wrong(self) -> Array:
        body_fits, others_fit = self._fits
        wrong: Array = ~(body_fits & others_fit & self._block.is_in_place())
        return wrong

    def _fault(self, start: int) -> str:
        block = self._block
        data = memoryview(block.data)
        check = check_record(data, start, self._available - start, block.physic_offset + start)
        return f"{check.kind.value}: {check.detail}"

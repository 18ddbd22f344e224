"""The columns of a log's table: one row a message, and one for each damaged place.

``body`` is decoded if its producer compressed it (``sys_flag``); ``body_fault`` says why one is
still compressed.  ``size`` is the record's, in bytes; times are UTC, a host is "address:port".
``crc_ok`` says that the stored body matches ``body_crc``, ``record_ok`` that the whole record is
intact; ``fault`` is what is wrong.

If the lengths inside a record do not agree, only ``store``, ``physic_offset``, ``size`` (to where
reading resumes), ``segment``, ``record_ok`` and ``fault`` have a value.  If a property's name comes
twice, the last value counts, as in RocketMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIME: Final = pa.timestamp("us", tz="UTC")

COLUMNS: Final[dict[str, pa.DataType]] = {
    "store": pa.string(),
    "physic_offset": pa.int64(),
    "size": pa.int32(),
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "tags": pa.string(),
    "keys": pa.string(),
    "uniq_key": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "born_timestamp": _TIME,
    "store_timestamp": _TIME,
    "born_host": pa.string(),
    "store_host": pa.string(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "body": pa.binary(),
    "body_fault": pa.string(),
    "body_crc": pa.int32(),
    "crc_ok": pa.bool_(),
    "record_ok": pa.bool_(),
    "segment": pa.string(),
    "fault": pa.string(),
}
# Only for hastore's own checks: the property text as stored; the CRC32 of all bytes of a row,
# record or not, with its sign bit.
INNER_COLUMNS: Final[dict[str, pa.DataType]] = {
    "properties_text": pa.binary(),
    "digest": pa.int32(),
}


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of some columns, or of all.

    Raises ConfigError for an unknown or repeated name, and for a text instead of a list.
    """
    if isinstance(columns, str):
        raise ConfigError(f"columns is {columns!r}, not a list", hint=f"columns=[{columns!r}]")
    names = list(COLUMNS) if columns is None else list(columns)
    if not names:
        raise ConfigError("no column is asked for", hint=f"columns: {', '.join(COLUMNS)}")
    types = COLUMNS | INNER_COLUMNS
    for name in names:
        if name not in types:
            raise ConfigError(f"no column is named {name!r}", hint=f"columns: {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise ConfigError(f"column {name} is asked for twice", hint="name each once")
    return pa.schema([(name, types[name]) for name in names])

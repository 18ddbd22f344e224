"""A simple Python data source that yields one tuple for each message.

``format("hastore")`` is compared with it.  It reads undamaged logs only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isal import isal_zlib
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hastore.pipeline.source.table_schema import table_ddl
from hastore.store.record.layout import MESSAGE_MAGIC_CODE
from hastore.store.record.message_codec import decode

HEAD_SIZE = 91


class RowSource(DataSource):
    """Has all columns of the table, or those of the user's schema."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rows"

    def schema(self) -> str:
        """Return the table's schema."""
        return table_ddl()

    def reader(self, schema: StructType) -> RowReader:
        """Return a reader of the schema's columns."""
        return RowReader(self.options["path"], int(self.options["files"]), schema.fieldNames())


class RowReader(DataSourceReader):
    """Reads each file in one task."""

    def __init__(self, path: str, files: int, columns: list[str]) -> None:
        self.path = path
        self.files = files
        self.columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each of the first ``files`` files."""
        files = sorted(Path(self.path, "commitlog").iterdir())[: self.files]
        return [InputPartition(file.name) for file in files]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Decode one file record by record."""
        data = Path(self.path, "commitlog", partition.value).read_bytes()
        position = 0
        while position + HEAD_SIZE <= len(data):
            size = int.from_bytes(data[position : position + 4], "big")
            magic = int.from_bytes(data[position + 4 : position + 8], "big", signed=True)
            if magic != MESSAGE_MAGIC_CODE:
                break
            row = _row(data[position : position + size], self.path, partition.value)
            yield tuple(row[name] for name in self.columns)
            position += size


def _row(record: bytes, store: str, segment: str) -> dict[str, Any]:
    message = decode(record)
    properties = message.properties
    crc_ok = isal_zlib.crc32(message.body) & 0x7FFFFFFF == message.body_crc
    return {
        "store": store,
        "physic_offset": message.physic_offset,
        "size": message.total_size,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "uniq_key": properties.get("UNIQ_KEY"),
        "properties": properties,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp": dt.datetime.fromtimestamp(message.born_timestamp_ms / 1000, dt.UTC),
        "store_timestamp": dt.datetime.fromtimestamp(message.store_timestamp_ms / 1000, dt.UTC),
        "born_host": "{}:{}".format(*message.born_host),
        "store_host": "{}:{}".format(*message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body": message.body,
        "body_fault": message.body_fault,
        "body_crc": message.body_crc,
        "crc_ok": crc_ok,
        "record_ok": crc_ok,
        "segment": segment,
        "fault": None,
    }

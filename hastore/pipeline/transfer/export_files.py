"""Write an export: one file, or a directory of parts, in the order of the log.

::

    DIR/part-00000.jsonl, part-00001.jsonl, …   a part per task, none of them empty
    FILE.jsonl                                  all parts joined

An export is written in ``.NAME.unfinished`` and renamed, so it is complete or not there.

A row::

    topic, queue_id, queue_offset, tags, keys
    body, body_encoding                          text as it is ("utf-8"), or base64 of other bytes
    body_fault                                   why a body is still compressed; null if it is not
    properties                                   all of them, also TAGS, KEYS and UNIQ_KEY
    flag, sys_flag, reconsume_times, prepared_transaction_offset
    born_timestamp_ms, born_host, store_timestamp_ms, store_host
    store, physic_offset, size                   of the record that it was read from

A body that its producer compressed is decoded, and the flags of compression are cleared in
sys_flag, so that an import sends what it reads.  Text with a NUL counts as other bytes: many
programs end a text there.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.spark.table_file import local_uri
from hastore.pipeline.transfer.import_rows import BASE64, UTF8
from hastore.store.record.layout import COMPRESSED_FLAG, COMPRESSION_TYPE_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from hastore.env.interface import Disk

SOURCE_COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "tags", "keys", "body", "body_fault", "properties", "flag",
    "sys_flag", "reconsume_times", "prepared_transaction_offset", "born_timestamp", "born_host",
    "store_timestamp", "store_host", "store", "physic_offset", "size", "record_ok", "fault",
)  # fmt: skip
# In the fault of damage: how many records in it nothing confirms.
UNCONFIRMED_COUNT: Final = r"; (\d+) unconfirmed records? in it$"
FORMATS: Final = ("jsonl", "csv", "parquet")
_CHUNK: Final = 8 * 1024 * 1024
_SUFFIXES: Final = {"json": "jsonl", "csv": "csv", "parquet": "parquet"}
# As Python's csv reads it: every value quoted, quotes doubled, blanks kept.
_CSV: Final = {
    "escape": '"',
    "quoteAll": "true",
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    "emptyValue": "",
}


# -- rows ------------------------------------------------------------------------------------------


def exported(messages: DataFrame, *, raw_bodies: bool = False) -> DataFrame:
    """Return the rows of an export; with ``raw_bodies`` compressed bodies were not decoded."""
    text = sf.col("body").cast("string")
    is_text = sf.is_valid_utf8(text) & (sf.locate("\0", text) == 0)
    # Spark breaks base64 into lines of 76, as MIME has it.
    base64 = sf.translate(sf.base64("body"), "\r\n", "")
    sys_flag = sf.col("sys_flag")
    if not raw_bodies:
        was_decoded = (sys_flag.bitwiseAND(COMPRESSED_FLAG) != 0) & sf.col("body_fault").isNull()
        plain = sys_flag.bitwiseAND(~(COMPRESSED_FLAG | COMPRESSION_TYPE_MASK))
        sys_flag = sf.when(was_decoded, plain).otherwise(sys_flag)
    return messages.select(
        "topic",
        "queue_id",
        "queue_offset",
        "tags",
        "keys",
        sf.when(is_text, text).otherwise(base64).alias("body"),
        sf.when(is_text, sf.lit(UTF8)).otherwise(sf.lit(BASE64)).alias("body_encoding"),
        "body_fault",
        "properties",
        "flag",
        sys_flag.alias("sys_flag"),
        "reconsume_times",
        "prepared_transaction_offset",
        _ms("born_timestamp"),
        "born_host",
        _ms("store_timestamp"),
        "store_host",
        "store",
        "physic_offset",
        "size",
    )


def flat(rows: DataFrame) -> DataFrame:
    """Return the rows with properties as JSON text, for formats without maps."""
    return rows.withColumn("properties", sf.to_json("properties"))


def _ms(column: str) -> Column:
    return sf.unix_millis(column).alias(f"{column}_ms")


# -- files -----------------------------------------------------------------------------------------


def format_of(path: str, wanted: str | None) -> str:
    """Return the ``wanted`` format, else that of the path's suffix.  Raises ConfigError."""
    name = path.rstrip("/")
    if wanted is not None:
        return wanted
    for known in FORMATS:
        if name.endswith(f".{known}"):
            return known
    raise ConfigError(
        f"{path} does not say which format to write",
        hint=f"end it with .jsonl, .csv or .parquet, or add --format {'|'.join(FORMATS)}",
    )


def is_one_file(path: str, file_format: str) -> bool:
    """Whether a path names one file: it ends with the format's suffix, without a slash."""
    return path.endswith(f".{file_format}")


def refuse_existing(path: str) -> None:
    """Raise ConfigError if the path exists."""
    if real_env().disk.exists(path.rstrip("/")):
        raise ConfigError(f"{path} is there already", hint="name a file that does not exist")


def write_export(rows: DataFrame, path: str, file_format: str) -> str:
    """Write the rows, and return the path.  Raises ConfigError if it exists, DiskError."""
    disk = real_env().disk
    one_file = is_one_file(path, file_format)
    path = path.rstrip("/")
    refuse_existing(path)
    folder, slash, name = path.rpartition("/")
    folder = folder or slash or "."
    disk.make_dirs(folder)
    work = f"{folder.rstrip('/')}/.{name}.unfinished"
    try:
        disk.remove_tree(work)
        parts = f"{work}/parts"
        _write_parts(rows, parts, file_format, one_file=one_file)
        names = _tidy(disk, parts)
        whole = parts
        if one_file:
            head = _csv_head(rows.columns) if file_format == "csv" else b""
            whole = f"{work}/whole"
            _join(disk, [f"{parts}/{name}" for name in names], whole, head)
        disk.rename(whole, path)
    finally:
        disk.remove_tree(work)
    disk.sync_dir(folder)
    return path


def _write_parts(rows: DataFrame, parts: str, file_format: str, *, one_file: bool) -> None:
    where = local_uri(parts)
    match file_format:
        case "jsonl":
            rows.write.option("ignoreNullFields", "false").json(where)
        case "csv":
            flat(rows).write.options(**_CSV).option("header", not one_file).csv(where)
        case _:
            # Parquet files cannot be joined end to end.
            partitioned = rows.coalesce(1) if one_file else rows
            partitioned.write.option("compression", "zstd").parquet(where)


def _tidy(disk: Disk, parts: str) -> list[str]:
    """Remove empty parts and Spark's own files; sync and rename the parts, and return the names."""
    names: list[str] = []
    for entry in disk.list_dir(parts):
        old = f"{parts}/{entry.name}"
        if not entry.name.startswith("part-"):
            disk.remove(old)
            continue
        kind = entry.name.rpartition(".")[2]
        name = f"part-{len(names):05d}.{_SUFFIXES[kind]}"
        if not entry.size:
            disk.remove(old)
            continue
        with contextlib.closing(disk.open_file(old, writable=False)) as file:
            file.sync()
        disk.rename(old, f"{parts}/{name}")
        names.append(name)
    disk.sync_dir(parts)
    return names


def _csv_head(columns: Sequence[str]) -> bytes:
    return (",".join(f'"{name}"' for name in columns) + "\n").encode()


def _join(disk: Disk, files: Sequence[str], whole: str, head: bytes) -> None:
    """Join files into one, synced; ``head`` comes first."""
    with contextlib.ExitStack() as stack:
        sources = [
            stack.enter_context(contextlib.closing(disk.open_file(file, writable=False)))
            for file in files
        ]
        sizes = [source.size for source in sources]
        target = disk.open_sparse_file(whole, len(head) + sum(sizes))
        stack.callback(target.close)
        target.pwrite(head, 0)
        position = len(head)
        for source, size in zip(sources, sizes, strict=True):
            for start in range(0, size, _CHUNK):
                data = source.pread(min(_CHUNK, size - start), start)
                target.pwrite(data, position)
                position += len(data)
        target.sync()

"""The rows of an export: what a message is to people and to other programs.  A transform, no I/O.

::

    topic, queue_id, queue_offset, tags, keys    where it lies, and how it is found
    body, body_encoding                          text as it is ("utf-8"), or base64 of other bytes
    properties                                   all of them, also TAGS, KEYS and UNIQ_KEY
    flag, sys_flag, reconsume_times, prepared_transaction_offset
    born_timestamp_ms, born_host, store_timestamp_ms, store_host
    store, physic_offset, size                   of the record that it was read from

Text with a NUL in it counts as bytes: many programs end a text there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from hastore.pipeline.transfer.import_rows import BASE64, UTF8

SOURCE_COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "tags", "keys", "body", "properties", "flag", "sys_flag",
    "reconsume_times", "prepared_transaction_offset", "born_timestamp", "born_host",
    "store_timestamp", "store_host", "store", "physic_offset", "size", "record_ok",
)  # fmt: skip


def whole(messages: DataFrame) -> DataFrame:
    """Keep what is not damaged."""
    return messages.where("record_ok")


def with_tag(messages: DataFrame, tag: str) -> DataFrame:
    """Keep what has one tag."""
    return messages.where(sf.col("tags") == tag)


def exported(messages: DataFrame) -> DataFrame:
    """Return the rows of an export."""
    text = sf.col("body").cast("string")
    is_text = sf.is_valid_utf8(text) & (sf.locate("\0", text) == 0)
    # Spark breaks base64 into lines of 76, as MIME has it.
    base64 = sf.translate(sf.base64("body"), "\r\n", "")
    return messages.select(
        "topic",
        "queue_id",
        "queue_offset",
        "tags",
        "keys",
        sf.when(is_text, text).otherwise(base64).alias("body"),
        sf.when(is_text, sf.lit(UTF8)).otherwise(sf.lit(BASE64)).alias("body_encoding"),
        "properties",
        "flag",
        "sys_flag",
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
    """Return the rows with properties as JSON text, for a format without maps."""
    return rows.withColumn("properties", sf.to_json("properties"))


def _ms(column: str) -> Column:
    return sf.unix_millis(column).alias(f"{column}_ms")

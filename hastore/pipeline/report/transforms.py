"""The transforms of a report: functions from DataFrame to DataFrame, without I/O.

::

    messages ─ stores()                             one row per store: how much, from when to when
             ├ cells() ─┬ by_minute() by_topic() by_tag() by_queue() by_bucket()
             │          └ gaps() same_messages()
             ├ distributions() ─ percentiles() histogram()
             ├ key_counts()
             └ duplicates()

``messages`` has the columns of ``hastore.columnar.log_schema`` that the constants below name.  All
but ``stores`` count only intact records (``record_ok``) with a possible store time.  Times are
integers since 1970, in seconds (``…_s``) or milliseconds (``…_ms``), so that a session's time zone
does not change results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from hastore.pipeline.report.buckets import (
    BIN_BASES,
    BIN_EPSILON,
    BINS_PER_FACTOR,
    GAP_LEAST_MS,
    GAP_TO_MEAN,
    MINUTE_S,
    TIME_END_S,
    VALUE_BITS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

STORE_COLUMNS: Final = ("store", "physic_offset", "size", "store_timestamp", "record_ok")
CELL_COLUMNS: Final = (
    *STORE_COLUMNS, "topic", "queue_id", "queue_offset", "tags", "born_timestamp",
)  # fmt: skip
DISTRIBUTION_COLUMNS: Final = ("size", "topic", "born_timestamp", "store_timestamp", "record_ok")
KEY_COLUMNS: Final = ("topic", "keys", "size", "store_timestamp", "record_ok")
DUPLICATE_COLUMNS: Final = (
    "store", "topic", "uniq_key", "reconsume_times", "physic_offset", "store_timestamp",
    "record_ok",
)  # fmt: skip
OTHERS: Final = None  # the topic of the series that sums up all others
SHARES: Final = (0.5, 0.9, 0.99, 0.999)


def _store_ms() -> Column:
    return sf.unix_millis("store_timestamp")


def _has_time() -> Column:
    return (sf.unix_seconds("store_timestamp") > 0) & (
        sf.unix_seconds("store_timestamp") < TIME_END_S
    )


def intact(messages: DataFrame) -> DataFrame:
    """Return the intact messages with a possible store time."""
    return messages.where(sf.col("record_ok") & _has_time())


def stores(messages: DataFrame) -> DataFrame:
    """Count a store's messages, bytes, damaged places and impossible times."""
    is_intact = sf.col("record_ok") & _has_time()
    return messages.groupBy("store").agg(
        sf.count_if(is_intact).alias("messages"),
        sf.sum(sf.when(is_intact, sf.col("size").cast("bigint")).otherwise(0)).alias("bytes"),
        sf.count_if(~sf.col("record_ok")).alias("damaged"),
        sf.count_if(sf.col("record_ok") & ~sf.coalesce(_has_time(), sf.lit(False))).alias(
            "without_time"
        ),
        sf.min(sf.when(is_intact, _store_ms())).alias("first_ms"),
        sf.max(sf.when(is_intact, _store_ms())).alias("last_ms"),
        sf.min("physic_offset").alias("min_offset"),
        sf.max(sf.col("physic_offset") + sf.col("size")).alias("end_offset"),
    )


# -- cells: sums of counts -------------------------------------------------------------------------


def cells(messages: DataFrame, base_s: int) -> DataFrame:
    """Count by store, topic, tag, queue and second or minute; other counts are sums of these.

    ``fingerprint`` is the same for the same messages in any order.
    """
    seconds = sf.unix_seconds("store_timestamp")
    lag_ms = _lag_ms()
    one = sf.xxhash64("physic_offset", "topic", "queue_id", "queue_offset", _store_ms())
    return (
        intact(messages)
        .withColumn("tag", sf.coalesce("tags", sf.lit("")))
        .withColumn("bucket_s", seconds - seconds % base_s)
        .groupBy("store", "topic", "tag", "queue_id", "bucket_s")
        .agg(
            sf.count("*").alias("messages"),
            sf.sum("size").alias("bytes"),
            sf.min(_store_ms()).alias("first_ms"),
            sf.max(_store_ms()).alias("last_ms"),
            sf.min("queue_offset").alias("min_offset"),
            sf.max("queue_offset").alias("max_offset"),
            sf.sum(lag_ms).alias("lag_sum_ms"),
            sf.max(lag_ms).alias("lag_max_ms"),
            sf.bit_xor(one).alias("fingerprint"),
        )
    )


def _lag_ms() -> Column:
    """Return how much later a message was stored than born; negative if the clocks differ."""
    return _store_ms() - sf.unix_millis("born_timestamp")


def _counts() -> tuple[Column, Column]:
    return sf.sum("messages").alias("messages"), sf.sum("bytes").alias("bytes")


def by_minute(cells: DataFrame) -> DataFrame:
    """Return traffic by topic, tag and minute: grows with the log, so never collected."""
    minute = sf.timestamp_seconds(sf.col("bucket_s") - sf.col("bucket_s") % MINUTE_S)
    keys = (minute.alias("minute"), "topic", "tag")
    return cells.groupBy(*keys).agg(*_counts())


def by_topic(cells: DataFrame) -> DataFrame:
    """Return traffic by topic, with its numbers of tags and queues."""
    return cells.groupBy("topic").agg(
        *_counts(),
        sf.count_distinct(sf.when(sf.col("tag") != "", sf.col("tag"))).alias("tags"),
        sf.count_distinct("store", "queue_id").alias("queues"),
        sf.min("first_ms").alias("first_ms"),
        sf.max("last_ms").alias("last_ms"),
    )


def by_tag(cells: DataFrame) -> DataFrame:
    """Return traffic by topic and tag; a message without one has the tag ''."""
    return cells.groupBy("topic", "tag").agg(*_counts())


def by_queue(cells: DataFrame) -> DataFrame:
    """Return traffic by queue, with its ratio to the mean of its topic: 1.0 is balanced."""
    queues = cells.groupBy("store", "topic", "queue_id").agg(
        *_counts(),
        sf.min("min_offset").alias("min_offset"),
        sf.max("max_offset").alias("max_offset"),
    )
    topic = Window.partitionBy("store", "topic")
    return queues.withColumns(
        {
            "queues": sf.count("*").over(topic),
            "to_mean": sf.col("messages") / sf.avg("messages").over(topic),
        }
    )


def balance(queues: DataFrame) -> DataFrame:
    """Return the fullest queue of each topic of a store; ``skew`` is its ratio to the mean."""
    return queues.groupBy("store", "topic").agg(
        sf.sum("messages").alias("messages"),
        sf.count("*").alias("queues"),
        sf.min("messages").alias("least"),
        sf.max("messages").alias("most"),
        sf.max_by("queue_id", sf.struct("messages", -sf.col("queue_id"))).alias("fullest_queue"),
        sf.max("to_mean").alias("skew"),
    )


def by_bucket(cells: DataFrame, width_s: int, topics: Sequence[str]) -> DataFrame:
    """Return traffic and lag by bucket of a plot and topic; topics not named are OTHERS."""
    named = sf.when(sf.col("topic").isin(*topics), sf.col("topic")) if topics else sf.lit(OTHERS)
    bucket = sf.col("bucket_s") - sf.col("bucket_s") % width_s
    return cells.groupBy(bucket.alias("bucket_s"), named.alias("topic")).agg(
        *_counts(),
        sf.sum("lag_sum_ms").alias("lag_sum_ms"),
        sf.max("lag_max_ms").alias("lag_max_ms"),
    )


def gaps(cells: DataFrame) -> DataFrame:
    """Return the gaps longer than ``least_ms``: 2 s, or 20 times a store's mean interval if more.

    The first and last message of a bucket are known, so both ends are exact; gaps within one
    bucket are not found.
    """
    store = Window.partitionBy("store")
    buckets = (
        cells.groupBy("store", "bucket_s")
        .agg(
            sf.min("first_ms").alias("first_ms"),
            sf.max("last_ms").alias("last_ms"),
            sf.sum("messages").alias("messages"),
        )
        .withColumn("span_ms", sf.max("last_ms").over(store) - sf.min("first_ms").over(store))
        .withColumn("mean_ms", sf.col("span_ms") / sf.sum("messages").over(store))
    )
    in_order = Window.partitionBy("store").orderBy("bucket_s")
    return (
        buckets.select(
            "store",
            sf.col("last_ms").alias("from_ms"),
            sf.lead("first_ms").over(in_order).alias("to_ms"),
            sf.greatest(sf.lit(GAP_LEAST_MS), GAP_TO_MEAN * sf.col("mean_ms"))
            .cast("bigint")
            .alias("least_ms"),
        )
        .withColumn("gap_ms", sf.col("to_ms") - sf.col("from_ms"))
        .where(sf.col("gap_ms") > sf.col("least_ms"))
    )


def same_messages(cells: DataFrame) -> DataFrame:
    """Return the stores with the same messages in the same second or minute: copies of a log."""
    return (
        cells.groupBy("store", "bucket_s")
        .agg(sf.sum("messages").alias("messages"), sf.bit_xor("fingerprint").alias("fingerprint"))
        .groupBy("bucket_s", "messages", "fingerprint")
        .agg(sf.array_sort(sf.collect_set("store")).alias("stores"))
        .where(sf.size("stores") > 1)
        .groupBy("stores")
        .agg(sf.sum("messages").alias("messages"))
    )


# -- sizes and lags --------------------------------------------------------------------------------


def distributions(messages: DataFrame) -> DataFrame:
    """Count sizes and lags by topic; ``value`` keeps 11 leading bits, so that rows stay few."""
    both = sf.array(
        sf.struct(sf.lit("size").alias("measure"), sf.col("size").cast("bigint").alias("raw")),
        sf.struct(sf.lit("lag_ms").alias("measure"), _lag_ms().alias("raw")),
    )
    return (
        intact(messages)
        .select("topic", sf.explode(both).alias("one"))
        .select("topic", "one.measure", "one.raw", _coarse(sf.col("one.raw")).alias("value"))
        .groupBy("measure", "topic", "value")
        .agg(
            sf.count("*").alias("messages"),
            sf.min("raw").alias("least"),
            sf.max("raw").alias("most"),
            sf.sum("raw").alias("total"),
        )
    )


def _coarse(value: Column) -> Column:
    bits = sf.length(sf.bin(sf.abs(value)))
    # pyspark's function takes numbers only, Spark's takes columns too.
    places = sf.greatest(bits - VALUE_BITS, sf.lit(0))
    step = sf.call_function("shiftleft", sf.lit(1).cast("bigint"), places)
    return sf.when(bits <= VALUE_BITS, value).otherwise(value - value % step)


def percentiles(distributions: DataFrame, *keys: str) -> DataFrame:
    """Return count, least, mean, p50, p90, p99, p99.9 and most by measure and ``keys``."""
    found = distributions.groupBy("measure", *keys).agg(
        sf.sum("messages").alias("messages"),
        sf.min("least").alias("least"),
        (sf.sum("total") / sf.sum("messages")).alias("mean"),
        sf.percentile("value", list(SHARES), sf.col("messages")).alias("shares"),
        sf.max("most").alias("most"),
    )
    named = {f"p{100 * share:g}".replace(".", "_"): place for place, share in enumerate(SHARES)}
    return found.withColumns({name: sf.col("shares")[place] for name, place in named.items()}).drop(
        "shares"
    )


def histogram(distributions: DataFrame) -> DataFrame:
    """Count messages by logarithmic bin; values ≤ 0 have bin null."""
    # Rounding must not put a value on a border into the bin below.
    base = sf.when(sf.col("measure") == "size", BIN_BASES["size"]).otherwise(BIN_BASES["lag_ms"])
    place = sf.floor(sf.log("value") / sf.log(base) * BINS_PER_FACTOR + BIN_EPSILON)
    place = sf.when(sf.col("value") > 0, place)
    return distributions.groupBy("measure", place.alias("bin")).agg(
        sf.sum("messages").alias("messages")
    )


# -- keys ------------------------------------------------------------------------------------------


def key_counts(messages: DataFrame) -> DataFrame:
    """Count messages by topic and key; a message may have several keys, separated by spaces."""
    return (
        intact(messages)
        .where(sf.length(sf.trim("keys")) > 0)
        .select(
            "topic",
            "size",
            sf.explode(sf.array_distinct(sf.split(sf.trim("keys"), " +"))).alias("key"),
        )
        .groupBy("topic", "key")
        .agg(sf.count("*").alias("messages"), sf.sum("size").alias("bytes"))
    )


def duplicates(messages: DataFrame) -> DataFrame:
    """Return the UNIQ_KEYs that a topic of a store has more than once.

    A message that a group sent back is no duplicate: it has another ``reconsume_times``.
    """
    return (
        intact(messages)
        .where(sf.length("uniq_key") > 0)
        .groupBy(
            "store", "topic", "uniq_key", sf.coalesce("reconsume_times", sf.lit(0)).alias("tries")
        )
        .agg(
            sf.count("*").alias("copies"),
            sf.min("physic_offset").alias("first_offset"),
            sf.max("physic_offset").alias("last_offset"),
            sf.min(_store_ms()).alias("first_ms"),
            sf.max(_store_ms()).alias("last_ms"),
        )
        .where(sf.col("copies") > 1)
        .drop("tries")
    )

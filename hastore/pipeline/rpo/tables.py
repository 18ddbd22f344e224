"""The transforms of ``rpo``: join puts with the records of the surviving logs, by UNIQ_KEY.

::

    survivors ─ copies ─► a row per key:  [(body_crc, [copies in D2, copies in D3]), …]
    history   ─ puts   ─► a row per put ──┐
                                          └─ join_fates ─► a row per put with its fate, and a row
                                                           per key that the history lacks

Messages are compared by key and CRC32 of the body, so no body leaves the machine that reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from hastore.pipeline.rpo.rules import ALIKE, Fate, all_fates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

RECORDS: Final = ("store", "uniq_key", "body_crc", "record_ok")  # the columns read from a log
EXAMPLES: Final = (
    "fate", "status", "key", "topic", "queue_id", "sent_at", "node", "physic_offset",
    "present_in", "other_bodies",
)  # fmt: skip


def copies(records: DataFrame, survivors: Sequence[str]) -> DataFrame:
    """Count the records of each key by body, damage and survivor.

    One row has no key: it counts damage, and messages without a key.
    """
    is_intact = sf.col("record_ok")
    key = sf.when(is_intact, sf.col("uniq_key"))
    counts = sf.array(*(sf.count_if(sf.col("store") == name) for name in survivors))
    bodies = records.groupBy(
        key.alias("of_key"),
        # RocketMQ writes the CRC32 without its sign bit.
        sf.when(key.isNotNull(), _unsigned(sf.col("body_crc"))).alias("crc"),
        (~is_intact).alias("is_damaged"),
    ).agg(counts.alias("copies"))
    return bodies.groupBy("of_key").agg(
        sf.collect_list(sf.struct("crc", "is_damaged", "copies")).alias("bodies")
    )


def join_fates(puts: DataFrame, found: DataFrame, survivors: Sequence[str]) -> DataFrame:
    """Return each put with its fate, and rows without ``op`` for records that match no put.

    ``copies``, ``others`` and ``damaged`` have a number per survivor: of records with the body that
    was sent, with the key and another body (or a key that was never sent), and unreadable ones.
    """
    joined = puts.join(found, puts["key"] == found["of_key"], "full_outer")
    crc, is_put = _unsigned(sf.col("body_crc")), sf.col("op").isNotNull()

    def is_sent(body: Column) -> Column:
        # Any body matches if the history does not have the CRC32 of the one sent.
        is_same = crc.isNull() | (body["crc"] == crc)
        return ~body["is_damaged"] & is_put & sf.coalesce(is_same, sf.lit(False))

    def total(is_one: Callable[[Column], Column]) -> Column:
        nothing = sf.array(*(sf.lit(0).cast("bigint") for _ in survivors))
        bodies = sf.filter(sf.coalesce("bodies", sf.array()), is_one)
        return sf.aggregate(bodies, nothing, lambda counts, body: _sum(counts, body["copies"]))

    counted = joined.select(
        *puts.columns,
        total(is_sent).alias("copies"),
        total(lambda body: ~body["is_damaged"] & ~is_sent(body)).alias("others"),
        total(lambda body: body["is_damaged"]).alias("damaged"),
    )
    extra = sf.aggregate(
        sf.transform("copies", lambda count: sf.greatest(count - sf.col("sent_count"), sf.lit(0))),
        sf.lit(0).cast("bigint"),
        _plus,
    )
    return (
        counted.withColumn("extra", sf.coalesce(extra, sf.lit(0)))
        .withColumn("held", sf.exists("copies", lambda count: count > 0))
        .withColumn("fate", sf.when(is_put, _fate()))
        .withColumn("second", _time("wall_ms", "yyyy-MM-dd'T'HH:mm:ssXXX"))
    )


def _plus(before: Column, more: Column) -> Column:
    return before + more


def _time(column: str, pattern: str) -> Column:
    return sf.date_format(sf.timestamp_millis(column), pattern)


def _sum(left: Column, right: Column) -> Column:
    return sf.zip_with(left, right, lambda one, other: one + other)


def _unsigned(crc: Column) -> Column:
    return crc.cast("bigint").bitwiseAND(sf.lit(0x7FFF_FFFF))


def _fate() -> Column:
    """Look up the fate in the table of ``rules``, so that the rules are in one place."""
    table = [
        sf.lit(cell)
        for outcome, *facts, fate in all_fates()
        for cell in (_key(outcome, *facts), fate.value)
    ]
    facts = (sf.col("promised"), sf.col("held"), sf.col("extra") > 0, sf.col("expired"))
    key = sf.concat_ws(" ", "outcome", *(fact.cast("string") for fact in facts))
    return sf.create_map(*table)[key]


def _key(outcome: str, *facts: bool) -> str:
    return " ".join((outcome, *(str(fact).lower() for fact in facts)))


def count(fates: DataFrame, survivors: Sequence[str]) -> list[dict[str, Any]]:
    """Count puts with the same facts by topic: the rows of counts that ``rules`` describes.

    Their number depends on the nodes, statuses, topics and survivors, not on the logs' size.
    """
    present = sf.transform("copies", lambda count: sf.when(count > 0, "1").otherwise("0"))
    sums = [
        sf.array(*(sf.sum(sf.col(name)[at]) for at in range(len(survivors)))).alias(name)
        for name in ("copies", "others", "damaged")
    ]
    grouped = (
        fates.withColumn("present", sf.concat_ws("", present))
        .withColumn("repeated", sf.col("extra") > 0)
        .groupBy(*ALIKE, "topic")
        .agg(sf.count("op").alias("puts"), sf.sum("extra").alias("extra"), *sums)
    )
    return [row.asDict() for row in grouped.orderBy(*ALIKE, "topic").collect()]


def by_second(fates: DataFrame) -> DataFrame:
    """Count puts by the second in which they were sent, a column for each fate."""
    counts = [sf.count_if(sf.col("fate") == fate.value).alias(fate.name.lower()) for fate in Fate]
    grouped = fates.groupBy("second").agg(sf.count("*").alias("puts"), *counts)
    return grouped.orderBy("second")


def wrong(fates: DataFrame, *, strict: bool) -> DataFrame:
    """Return the puts with a wrong fate or an altered body."""
    names = [fate.value for fate in Fate if fate.is_wrong or (strict and fate is Fate.ALONE_LOST)]
    is_altered = sf.exists("others", lambda count: count > 0)
    return fates.where(sf.col("op").isNotNull() & (sf.col("fate").isin(names) | is_altered))


def described(fates: DataFrame, survivors: Sequence[str]) -> DataFrame:
    """Replace the arrays of each put by columns for people."""
    names = sf.array(*(sf.lit(name) for name in survivors))
    present = sf.filter(names, lambda _, at: sf.get("copies", at) > 0)
    others = sf.aggregate("others", sf.lit(0).cast("bigint"), _plus)
    return (
        fates.withColumn("sent_at", _time("wall_ms", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"))
        .withColumn("present_in", sf.concat_ws(", ", present))
        .withColumn("other_bodies", others)
        .drop("copies", "others", "damaged", "held")
    )


def examples(fates: DataFrame, survivors: Sequence[str]) -> DataFrame:
    """Describe puts, the worst fate first, then in the order in which they were sent."""
    ranks = sf.create_map(*(sf.lit(x) for n, fate in enumerate(Fate) for x in (fate.value, n)))
    ordered = described(fates, survivors).orderBy(ranks[sf.col("fate")], "wall_ms", "file", "op")
    return ordered.select(*EXAMPLES)

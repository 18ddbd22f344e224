"""Check that queue offsets count up by one in each queue: ``queue_continuity`` on a cluster.

    41 42 977 44    damage: the next record continues the count
    41 42 977 978   a warning: it was written that way
    damage 57       no finding: after unreadable bytes each queue may skip forward once

Windows are over single queues.  Only breaks, the first records of queues and damaged places, which
are few, are compared across queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUEUE: Final = ("store", "topic", "queue_id")


def with_expected(records: DataFrame) -> DataFrame:
    """Add the expected queue offset of each record that counts in its queue, and two others.

    ``expected`` is null for the first record of a queue; ``highest_before`` is the largest queue
    offset before it; ``next_of_queue`` is the queue offset after the queue's last record.
    """
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    return (
        records.where("fault IS NULL AND queue_step > 0")
        .withColumn("next_offset", sf.col("queue_offset") + sf.col("queue_step"))
        .withColumn("expected", sf.lag("next_offset").over(in_order))
        .withColumn("highest_before", sf.max("queue_offset").over(before))
        .withColumn(
            "next_of_queue",
            sf.max_by("next_offset", "physic_offset").over(Window.partitionBy(*QUEUE)),
        )
    )


def queue_breaks(expected: DataFrame, damaged: DataFrame, stores: DataFrame) -> DataFrame:
    """Return the records that break the count of their queue, with ``severity`` and ``detail``.

    ``damaged`` has store and physic_offset of unreadable places, ``stores`` store and min_offset.
    """
    events = expected.where("expected IS NULL OR expected <> queue_offset")
    events = _with_damage_before(events, damaged)
    return _with_severity(_without_allowed(events, stores))


def _with_damage_before(events: DataFrame, damaged: DataFrame) -> DataFrame:
    """Add the number of damaged places before each event."""
    places = damaged.select("store", "physic_offset", sf.lit(1).alias("is_damage"))
    so_far = Window.partitionBy("store").orderBy("physic_offset")
    return (
        events.withColumn("is_damage", sf.lit(0))
        .unionByName(places, allowMissingColumns=True)
        .withColumn("damage_before", sf.sum("is_damage").over(so_far))
        .where("is_damage = 0")
        .drop("is_damage")
    )


def _without_allowed(events: DataFrame, stores: DataFrame) -> DataFrame:
    """Drop first records of queues that need not begin at 0, and skips over damage."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    is_first = sf.col("expected").isNull()
    is_forward = is_first | (sf.col("queue_offset") > sf.col("expected"))
    damage_at_last = sf.last(sf.when(is_forward, sf.col("damage_before")), ignorenulls=True)
    is_allowed = is_forward & (sf.col("damage_before") > sf.col("damage_at_last"))
    begins_anywhere = (sf.col("min_offset") > 0) | (sf.col("damage_before") > 0)
    return (
        events.join(sf.broadcast(stores.select("store", "min_offset")), "store")
        .withColumn("damage_at_last", damage_at_last.over(before))
        .where(sf.when(is_first, ~begins_anywhere).otherwise(~is_allowed))
        .withColumn("expected", sf.coalesce("expected", sf.lit(0)))
        .where("expected <> queue_offset")
    )


def _with_severity(breaks: DataFrame) -> DataFrame:
    """Add severity and detail, which depend on the next break of the queue."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    returns = (sf.lag("expected").over(in_order) + 1 == sf.col("queue_offset")) & ~sf.lag(
        "has_crc"
    ).over(in_order)
    # A record that returns to the count explains the break before it, and is no break itself; so
    # in a run of such records, every second one is a break.
    numbered = (
        breaks.withColumn("returns", sf.coalesce(returns, sf.lit(False)))
        .withColumn("number", sf.row_number().over(in_order))
        .withColumn("base", sf.max(sf.when(~sf.col("returns"), sf.col("number"))).over(so_far))
        .withColumn("explains", sf.col("returns") & ((sf.col("number") - sf.col("base")) % 2 == 1))
        .withColumn("is_explained", sf.lead("explains").over(in_order))
    )
    is_last = sf.col("is_explained").isNull() & (sf.col("next_offset") == sf.col("next_of_queue"))
    reason = (
        sf.when(sf.col("has_crc"), "")
        .when(sf.col("is_explained"), "; the next one of its queue is right")
        .when(is_last & (sf.col("queue_offset") != 0), "; it is the last one of its queue")
        .otherwise("")
    )
    detail = sf.format_string(
        "queue offset %d where %d was expected%s", "queue_offset", "expected", reason
    )
    return (
        numbered.where("NOT explains")
        .withColumn("severity", sf.when(reason == "", "warning").otherwise("damage"))
        .withColumn("detail", detail)
    )

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
from pyspark.sql import functions as F  # noqa: N812 - its usual name

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
        .withColumn("next_offset", F.col("queue_offset") + F.col("queue_step"))
        .withColumn("expected", F.lag("next_offset").over(in_order))
        .withColumn("highest_before", F.max("queue_offset").over(before))
        .withColumn(
            "next_of_queue",
            F.max_by("next_offset", "physic_offset").over(Window.partitionBy(*QUEUE)),
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
    places = damaged.select("store", "physic_offset", F.lit(1).alias("is_damage"))
    so_far = Window.partitionBy("store").orderBy("physic_offset")
    return (
        events.withColumn("is_damage", F.lit(0))
        .unionByName(places, allowMissingColumns=True)
        .withColumn("damage_before", F.sum("is_damage").over(so_far))
        .where("is_damage = 0")
        .drop("is_damage")
    )


def _without_allowed(events: DataFrame, stores: DataFrame) -> DataFrame:
    """Drop first records of queues that need not begin at 0, and skips over damage."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    is_first = F.col("expected").isNull()
    is_forward = is_first | (F.col("queue_offset") > F.col("expected"))
    damage_at_last = F.last(F.when(is_forward, F.col("damage_before")), ignorenulls=True)
    is_allowed = is_forward & (F.col("damage_before") > F.col("damage_at_last"))
    begins_anywhere = (F.col("min_offset") > 0) | (F.col("damage_before") > 0)
    return (
        events.join(F.broadcast(stores.select("store", "min_offset")), "store")
        .withColumn("damage_at_last", damage_at_last.over(before))
        .where(F.when(is_first, ~begins_anywhere).otherwise(~is_allowed))
        .withColumn("expected", F.coalesce("expected", F.lit(0)))
        .where("expected <> queue_offset")
    )


def _with_severity(breaks: DataFrame) -> DataFrame:
    """Add severity and detail, which depend on the next break of the queue."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    returns = (F.lag("expected").over(in_order) + 1 == F.col("queue_offset")) & ~F.lag(
        "has_crc"
    ).over(in_order)
    # A record that returns to the count explains the break before it, and is no break itself; so
    # in a run of such records, every second one is a break.
    numbered = (
        breaks.withColumn("returns", F.coalesce(returns, F.lit(False)))
        .withColumn("number", F.row_number().over(in_order))
        .withColumn("base", F.max(F.when(~F.col("returns"), F.col("number"))).over(so_far))
        .withColumn("explains", F.col("returns") & ((F.col("number") - F.col("base")) % 2 == 1))
        .withColumn("is_explained", F.lead("explains").over(in_order))
    )
    is_last = F.col("is_explained").isNull() & (F.col("next_offset") == F.col("next_of_queue"))
    reason = (
        F.when(F.col("has_crc"), "")
        .when(F.col("is_explained"), "; the next one of its queue is right")
        .when(is_last & (F.col("queue_offset") != 0), "; it is the last one of its queue")
        .otherwise("")
    )
    detail = F.format_string(
        "queue offset %d where %d was expected%s", "queue_offset", "expected", reason
    )
    return (
        numbered.where("NOT explains")
        .withColumn("severity", F.when(reason == "", "warning").otherwise("damage"))
        .withColumn("detail", detail)
    )

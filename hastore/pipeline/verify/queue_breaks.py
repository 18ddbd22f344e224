"""Whether queue offsets count up by one in each queue: ``store.queue_continuity`` on a cluster.

    41 42 977 44    damage: the next record goes on as if nothing were
    41 42 977 978   a warning: it was written so
    damage 57       no finding: behind unreadable bytes each queue may skip forward once

Windows go over single queues.  Only what breaks a count, the first records of queues and damaged
places are looked at across queues, and those are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUEUE: Final = ("store", "topic", "queue_id")


def with_expected(records: DataFrame) -> DataFrame:
    """Add what each counted record's queue offset should be, and what its queue has seen.

    ``expected`` is null for the first of a queue; ``highest_before`` the largest queue offset
    before it; ``next_of_queue`` what the queue's last record leads to.
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

    ``damaged``: store and physic_offset of places that cannot be read; ``stores``: store and
    min_offset.
    """
    events = expected.where("expected IS NULL OR expected <> queue_offset")
    events = _with_damage_before(events, damaged)
    return _judged(_without_allowed(events, stores))


def _with_damage_before(events: DataFrame, damaged: DataFrame) -> DataFrame:
    """Add how many damaged places lie before each."""
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
    """Leave out first records of queues that need not begin at 0, and skips over damage."""
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


def _judged(breaks: DataFrame) -> DataFrame:
    """Say of each break what the next break of its queue makes of it."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    returns = (F.lag("expected").over(in_order) + 1 == F.col("queue_offset")) & ~F.lag(
        "has_crc"
    ).over(in_order)
    # A record that returns to the count explains the one before it, and is none itself; so in a
    # row of such records every second one is.
    numbered = (
        breaks.withColumn("returns", F.coalesce(returns, F.lit(False)))
        .withColumn("number", F.row_number().over(in_order))
        .withColumn("base", F.max(F.when(~F.col("returns"), F.col("number"))).over(so_far))
        .withColumn("explains", F.col("returns") & ((F.col("number") - F.col("base")) % 2 == 1))
        .withColumn("is_explained", F.lead("explains").over(in_order))
    )
    is_last = F.col("is_explained").isNull() & (F.col("next_offset") == F.col("next_of_queue"))
    verdict = (
        F.when(F.col("has_crc"), "")
        .when(F.col("is_explained"), "; the next one of its queue is right")
        .when(is_last & (F.col("queue_offset") != 0), "; it is the last one of its queue")
        .otherwise("")
    )
    said = F.format_string(
        "queue offset %d where %d was expected%s", "queue_offset", "expected", verdict
    )
    return (
        numbered.where("NOT explains")
        .withColumn("severity", F.when(verdict == "", "warning").otherwise("damage"))
        .withColumn("detail", said)
    )

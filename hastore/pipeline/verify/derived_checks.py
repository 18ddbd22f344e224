"""Check consume queues and index against the log: join what should be there with what is.

``records`` are the facts of intact records (from ``queue_breaks.with_expected`` for queues);
``units`` and ``entries`` are those of files; ``stores`` has a row per store: min_offset,
end_offset, is_open.

If a store is open or was killed, the last records may lack their unit or keys, which the next start
builds: they are counted as ``behind``.  Kinds of findings are those of ``hastore log verify``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from hastore.pipeline.verify.queue_breaks import QUEUE
from hastore.store.queue.unit import BLANK_SIZE, EXT_ADDRESS_MAX
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BEHIND: Final = "behind"
_TIME_DIFF_MAX: Final = 2**31 - 1


def join_units(expected: DataFrame, units: DataFrame, stores: DataFrame) -> DataFrame:
    """Join each record with its unit, either of which may be missing, in stores with queues."""
    of_queue = ("physic_offset", "size", "tags_code", "highest_before")
    records = expected.where("tags_code IS NOT NULL")
    records = records.select(*QUEUE, "queue_offset", *of_queue)
    is_blank = (F.col("unit_size") == BLANK_SIZE) & (F.col("unit_offset") == 0)
    return (
        records.join(units.withColumn("is_blank", is_blank), [*QUEUE, "queue_offset"], "full")
        .join(F.broadcast(stores), "store")
        .where("has_queues")
    )


def wrong_units(joined: DataFrame) -> DataFrame:
    """Return the records whose unit differs from them."""
    is_ext = F.col("unit_tags_code") <= EXT_ADDRESS_MAX  # an address in consumequeue_ext/
    has_other_code = (F.col("unit_tags_code") != F.col("tags_code")) & ~is_ext
    wrong = (
        F.when(F.col("is_blank"), "is blank")
        .when(
            F.col("unit_offset") != F.col("physic_offset"),
            F.format_string("points at %d", "unit_offset"),
        )
        .when(
            F.col("unit_size") != F.col("size"),
            F.format_string("has the size %d, the record %d", "unit_size", "size"),
        )
        .when(
            has_other_code,
            F.format_string("has the tags code %d, the record %d", "unit_tags_code", "tags_code"),
        )
    )
    both = joined.where("physic_offset IS NOT NULL AND unit_offset IS NOT NULL")
    checked = both.withColumn("wrong", wrong)
    # A queue that began again at 0 has one unit for two records; it belongs to the later one.
    later = checked.where("wrong IS NULL").select(*QUEUE, "queue_offset", "unit_offset")
    found = checked.where("wrong IS NOT NULL")
    found = found.join(later, [*QUEUE, "queue_offset", "unit_offset"], "left_anti")
    is_time = (F.col("topic") == SCHEDULE_TOPIC) & F.col("wrong").startswith("has the tags code")
    is_again = (F.col("highest_before") >= F.col("queue_offset")) & (
        F.col("unit_offset") < F.col("physic_offset")
    )
    is_odd = is_time | F.coalesce(is_again, F.lit(False))
    return found.select(
        *QUEUE,
        "queue_offset",
        F.col("physic_offset").alias("offset"),
        "size",
        F.when(is_odd, "warning").otherwise("damage").alias("severity"),
        F.lit("unit-wrong").alias("kind"),
        F.format_string("unit %d of %s/%d %s", "queue_offset", "topic", "queue_id", "wrong").alias(
            "detail"
        ),
    )


def missing_units(joined: DataFrame) -> DataFrame:
    """Return a row per run of records without a unit; the last run of an open store is behind."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    has_unit = F.col("unit_offset").isNotNull().cast("int")
    detail = F.format_string(
        "%d records of %s/%d have no unit, from queue offset %d",
        "count",
        "topic",
        "queue_id",
        "queue_offset",
    )
    return (
        joined.where("physic_offset IS NOT NULL")
        .withColumn("found_before", F.sum(has_unit).over(so_far))
        .withColumn("found_in_all", F.sum(has_unit).over(Window.partitionBy(*QUEUE)))
        .where("unit_offset IS NULL")
        .withColumn("is_behind", F.expr("is_open AND found_before = found_in_all"))
        .groupBy(*QUEUE, "found_before", "is_behind")
        .agg(
            F.count("*").alias("count"),
            F.min("physic_offset").alias("offset"),
            F.min_by("size", "physic_offset").alias("size"),
            F.min_by("queue_offset", "physic_offset").alias("queue_offset"),
        )
        .withColumn("severity", F.when(F.col("is_behind"), BEHIND).otherwise("damage"))
        .withColumn("kind", F.lit("unit-missing"))
        .withColumn("detail", detail)
        .drop("found_before", "is_behind")
    )


def dangling_units(joined: DataFrame, damaged: DataFrame) -> DataFrame:
    """Return the units without a record, except those of expired or damaged records."""
    found = joined.where("physic_offset IS NULL AND NOT is_blank")
    detail = F.format_string(
        "unit %d of %s/%d points at %d, not at its record",
        "queue_offset",
        "topic",
        "queue_id",
        "unit_offset",
    )
    return without_excused(found, damaged, "unit_offset").select(
        *QUEUE,
        "queue_offset",
        F.col("unit_offset").alias("offset"),
        F.col("unit_size").alias("size"),
        F.lit("damage").alias("severity"),
        F.lit("unit-dangling").alias("kind"),
        detail.alias("detail"),
    )


def without_excused(found: DataFrame, damaged: DataFrame, offset: str) -> DataFrame:
    """Drop what points before the log, into damage, or after the end of an open store's log."""
    is_kept = (F.col(offset) >= F.col("min_offset")) & ~(
        F.col("is_open") & (F.col(offset) >= F.col("end_offset"))
    )
    places = damaged.select(
        F.col("store").alias("of_store"),
        F.col("physic_offset").alias("begin"),
        (F.col("physic_offset") + F.col("size")).alias("end"),
    )
    at = F.col(offset)
    lies_there = (
        (F.col("store") == F.col("of_store")) & (at >= F.col("begin")) & (at < F.col("end"))
    )
    return found.where(is_kept).join(places, lies_there, "left_anti")


# -- index -----------------------------------------------------------------------------------------


def join_entries(records: DataFrame, entries: DataFrame, stores: DataFrame) -> DataFrame:
    """Join each record's keys with its index entries, in order, in stores with both."""
    of_record = (
        entries.where("fault IS NULL")
        .groupBy("store", "physic_offset")
        .agg(
            F.sort_array(
                F.collect_list(F.struct("file", "number", "key_hash", "time_diff_s", "begin_ms"))
            ).alias("entries")
        )
        .withColumn("found", F.col("entries.key_hash"))
    )
    wanted = records.where("fault IS NULL").select(
        *QUEUE,
        "queue_offset",
        "physic_offset",
        "size",
        "store_ms",
        F.col("key_hashes").alias("wanted"),
    )
    return (
        wanted.join(of_record, ["store", "physic_offset"], "full")
        .where("size(wanted) > 0 OR found IS NOT NULL")
        .join(F.broadcast(stores), "store")
        .where("has_index")
    )


def wrong_entries(joined: DataFrame, damaged: DataFrame) -> DataFrame:
    """Return the records whose index entries differ from their keys, and entries of no record."""
    both = joined.where("wanted IS NOT NULL AND found IS NOT NULL AND wanted <> found")
    has_missing = F.size(F.array_except("wanted", "found")) > 0
    has_others = F.size(F.array_except("found", "wanted")) > 0
    lost = _finding(
        both.where(has_missing),
        "damage",
        "index-missing",
        F.format_string(
            "%d of its keys are not in the index", F.size(F.array_except("wanted", "found"))
        ),
    )
    others = _finding(
        both.where(has_others),
        "damage",
        "index-dangling",
        F.format_string("the index has keys that the record lacks: %d entries", F.size("found")),
    )
    doubled = _finding(
        both.where(~has_others & (F.size("found") > F.size("wanted"))),
        "warning",
        "index-doubled",
        F.format_string("its %d keys have %d entries", F.size("wanted"), F.size("found")),
    )
    lone = without_excused(joined.where("wanted IS NULL"), damaged, "physic_offset")
    dangling = _finding(
        lone,
        "damage",
        "index-dangling",
        F.format_string(
            "entry %d of %s points at %d, not at a keyed record",
            F.col("entries")[0]["number"],
            F.col("entries")[0]["file"],
            "physic_offset",
        ),
    )
    return lost.unionByName(others).unionByName(doubled).unionByName(dangling)


def wrong_times(joined: DataFrame) -> DataFrame:
    """Return the entries whose time differs from their record's, except the first of a file."""
    seconds = F.when(
        F.col("entry.begin_ms") > 0,
        F.floor((F.col("store_ms") - F.col("entry.begin_ms")) / 1000),
    ).otherwise(0)
    seconds = F.least(F.greatest(seconds, F.lit(0)), F.lit(_TIME_DIFF_MAX))
    found = (
        joined.where("wanted IS NOT NULL AND found IS NOT NULL")
        .withColumn("entry", F.explode("entries"))
        .withColumn("seconds", seconds)
        .where("entry.number > 1 AND entry.time_diff_s <> seconds")
    )
    return _finding(
        found,
        "damage",
        "index-time",
        F.format_string(
            "entry %d of %s says %d s after the file's begin, its record %d s",
            "entry.number",
            "entry.file",
            "entry.time_diff_s",
            "seconds",
        ),
    )


def missing_entries(joined: DataFrame) -> DataFrame:
    """Return per store a row each for records without keys before, within and after its index."""
    wanted = joined.where("size(wanted) > 0")
    bounds = (
        wanted.where("found IS NOT NULL")
        .groupBy("store")
        .agg(F.min("physic_offset").alias("first"), F.max("physic_offset").alias("last"))
    )
    is_behind = F.col("is_open") & (
        F.col("physic_offset") > F.coalesce("last", F.lit(-1).cast("bigint"))
    )
    is_before = F.coalesce(F.col("physic_offset") < F.col("first"), F.lit(True))
    severity = F.when(is_behind, BEHIND).when(is_before, "warning").otherwise("damage")
    more = F.when(F.col("severity") == "warning", ", which begins after them").otherwise("")
    first = {name: F.min_by(name, "physic_offset").alias(name) for name in ("topic", "size")}
    return (
        wanted.where("found IS NULL")
        .join(bounds, "store", "left")
        .groupBy("store", severity.alias("severity"))
        .agg(F.count("*").alias("count"), F.min("physic_offset").alias("offset"), *first.values())
        .withColumn("kind", F.lit("index-missing"))
        .withColumn(
            "detail", F.format_string("%d records have no key in the index%s", "count", more)
        )
    )


def file_faults(entries: DataFrame) -> DataFrame:
    """Return the faults of the index files themselves."""
    return tagged(entries.where("fault IS NOT NULL"), "fault").select(
        "store", F.col("physic_offset").alias("offset"), "severity", "kind", "detail"
    )


def tagged(found: DataFrame, column: str) -> DataFrame:
    """Split a text "severity kind: detail" into columns."""
    pattern = r"(?s)^(\w+) ([\w-]+): (.*)$"
    return (
        found.withColumn("severity", F.regexp_extract(column, pattern, 1))
        .withColumn("kind", F.regexp_extract(column, pattern, 2))
        .withColumn("detail", F.regexp_extract(column, pattern, 3))
    )


def _finding(found: DataFrame, severity: str, kind: str, detail: Column) -> DataFrame:
    return found.select(
        *QUEUE,
        "queue_offset",
        F.col("physic_offset").alias("offset"),
        "size",
        F.lit(severity).alias("severity"),
        F.lit(kind).alias("kind"),
        detail.alias("detail"),
    )

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
from pyspark.sql import functions as sf

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
    is_blank = (sf.col("unit_size") == BLANK_SIZE) & (sf.col("unit_offset") == 0)
    return (
        records.join(units.withColumn("is_blank", is_blank), [*QUEUE, "queue_offset"], "full")
        .join(sf.broadcast(stores), "store")
        .where("has_queues")
    )


def wrong_units(joined: DataFrame) -> DataFrame:
    """Return the records whose unit differs from them."""
    is_ext = sf.col("unit_tags_code") <= EXT_ADDRESS_MAX  # an address in consumequeue_ext/
    has_other_code = (sf.col("unit_tags_code") != sf.col("tags_code")) & ~is_ext
    wrong = (
        sf.when(sf.col("is_blank"), "is blank")
        .when(
            sf.col("unit_offset") != sf.col("physic_offset"),
            sf.format_string("points at %d", "unit_offset"),
        )
        .when(
            sf.col("unit_size") != sf.col("size"),
            sf.format_string("has the size %d, the record %d", "unit_size", "size"),
        )
        .when(
            has_other_code,
            sf.format_string("has the tags code %d, the record %d", "unit_tags_code", "tags_code"),
        )
    )
    both = joined.where("physic_offset IS NOT NULL AND unit_offset IS NOT NULL")
    checked = both.withColumn("wrong", wrong)
    # A queue that began again at 0 has one unit for two records; it belongs to the later one.
    later = checked.where("wrong IS NULL").select(*QUEUE, "queue_offset", "unit_offset")
    found = checked.where("wrong IS NOT NULL")
    found = found.join(later, [*QUEUE, "queue_offset", "unit_offset"], "left_anti")
    is_time = (sf.col("topic") == SCHEDULE_TOPIC) & sf.col("wrong").startswith("has the tags code")
    is_again = (sf.col("highest_before") >= sf.col("queue_offset")) & (
        sf.col("unit_offset") < sf.col("physic_offset")
    )
    is_odd = is_time | sf.coalesce(is_again, sf.lit(False))
    return found.select(
        *QUEUE,
        "queue_offset",
        sf.col("physic_offset").alias("offset"),
        "size",
        sf.when(is_odd, "warning").otherwise("damage").alias("severity"),
        sf.lit("unit-wrong").alias("kind"),
        sf.format_string("unit %d of %s/%d %s", "queue_offset", "topic", "queue_id", "wrong").alias(
            "detail"
        ),
    )


def missing_units(joined: DataFrame) -> DataFrame:
    """Return a row per run of records without a unit; the last run of an open store is behind."""
    in_order = Window.partitionBy(*QUEUE).orderBy("physic_offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    has_unit = sf.col("unit_offset").isNotNull().cast("int")
    detail = sf.format_string(
        "%d records of %s/%d have no unit, from queue offset %d",
        "count",
        "topic",
        "queue_id",
        "queue_offset",
    )
    return (
        joined.where("physic_offset IS NOT NULL")
        .withColumn("found_before", sf.sum(has_unit).over(so_far))
        .withColumn("found_in_all", sf.sum(has_unit).over(Window.partitionBy(*QUEUE)))
        .where("unit_offset IS NULL")
        .withColumn("is_behind", sf.expr("is_open AND found_before = found_in_all"))
        .groupBy(*QUEUE, "found_before", "is_behind")
        .agg(
            sf.count("*").alias("count"),
            sf.min("physic_offset").alias("offset"),
            sf.min_by("size", "physic_offset").alias("size"),
            sf.min_by("queue_offset", "physic_offset").alias("queue_offset"),
        )
        .withColumn("severity", sf.when(sf.col("is_behind"), BEHIND).otherwise("damage"))
        .withColumn("kind", sf.lit("unit-missing"))
        .withColumn("detail", detail)
        .drop("found_before", "is_behind")
    )


def dangling_units(joined: DataFrame, damaged: DataFrame) -> DataFrame:
    """Return the units without a record, except those of expired or damaged records."""
    found = joined.where("physic_offset IS NULL AND NOT is_blank")
    detail = sf.format_string(
        "unit %d of %s/%d points at %d, not at its record",
        "queue_offset",
        "topic",
        "queue_id",
        "unit_offset",
    )
    return without_excused(found, damaged, "unit_offset").select(
        *QUEUE,
        "queue_offset",
        sf.col("unit_offset").alias("offset"),
        sf.col("unit_size").alias("size"),
        sf.lit("damage").alias("severity"),
        sf.lit("unit-dangling").alias("kind"),
        detail.alias("detail"),
    )


def without_excused(found: DataFrame, damaged: DataFrame, offset: str) -> DataFrame:
    """Drop what points before the log, into damage, or after the end of an open store's log."""
    is_kept = (sf.col(offset) >= sf.col("min_offset")) & ~(
        sf.col("is_open") & (sf.col(offset) >= sf.col("end_offset"))
    )
    places = damaged.select(
        sf.col("store").alias("of_store"),
        sf.col("physic_offset").alias("begin"),
        (sf.col("physic_offset") + sf.col("size")).alias("end"),
    )
    at = sf.col(offset)
    lies_there = (
        (sf.col("store") == sf.col("of_store")) & (at >= sf.col("begin")) & (at < sf.col("end"))
    )
    return found.where(is_kept).join(places, lies_there, "left_anti")


# -- index -----------------------------------------------------------------------------------------


def join_entries(records: DataFrame, entries: DataFrame, stores: DataFrame) -> DataFrame:
    """Join each record's keys with its index entries, in order, in stores with both."""
    of_record = (
        entries.where("fault IS NULL")
        .groupBy("store", "physic_offset")
        .agg(
            sf.sort_array(
                sf.collect_list(sf.struct("file", "number", "key_hash", "time_diff_s", "begin_ms"))
            ).alias("entries")
        )
        .withColumn("found", sf.col("entries.key_hash"))
    )
    wanted = records.where("fault IS NULL").select(
        *QUEUE,
        "queue_offset",
        "physic_offset",
        "size",
        "store_ms",
        sf.col("key_hashes").alias("wanted"),
    )
    return (
        wanted.join(of_record, ["store", "physic_offset"], "full")
        .where("size(wanted) > 0 OR found IS NOT NULL")
        .join(sf.broadcast(stores), "store")
        .where("has_index")
    )


def wrong_entries(joined: DataFrame, damaged: DataFrame) -> DataFrame:
    """Return the records whose index entries differ from their keys, and entries of no record."""
    both = joined.where("wanted IS NOT NULL AND found IS NOT NULL AND wanted <> found")
    has_missing = sf.size(sf.array_except("wanted", "found")) > 0
    has_others = sf.size(sf.array_except("found", "wanted")) > 0
    lost = _finding(
        both.where(has_missing),
        "damage",
        "index-missing",
        sf.format_string(
            "%d of its keys are not in the index", sf.size(sf.array_except("wanted", "found"))
        ),
    )
    others = _finding(
        both.where(has_others),
        "damage",
        "index-dangling",
        sf.format_string("the index has keys that the record lacks: %d entries", sf.size("found")),
    )
    doubled = _finding(
        both.where(~has_others & (sf.size("found") > sf.size("wanted"))),
        "warning",
        "index-doubled",
        sf.format_string("its %d keys have %d entries", sf.size("wanted"), sf.size("found")),
    )
    lone = without_excused(joined.where("wanted IS NULL"), damaged, "physic_offset")
    dangling = _finding(
        lone,
        "damage",
        "index-dangling",
        sf.format_string(
            "entry %d of %s points at %d, not at a keyed record",
            sf.col("entries")[0]["number"],
            sf.col("entries")[0]["file"],
            "physic_offset",
        ),
    )
    return lost.unionByName(others).unionByName(doubled).unionByName(dangling)


def wrong_times(joined: DataFrame) -> DataFrame:
    """Return the entries whose time differs from their record's, except the first of a file."""
    seconds = sf.when(
        sf.col("entry.begin_ms") > 0,
        sf.floor((sf.col("store_ms") - sf.col("entry.begin_ms")) / 1000),
    ).otherwise(0)
    seconds = sf.least(sf.greatest(seconds, sf.lit(0)), sf.lit(_TIME_DIFF_MAX))
    found = (
        joined.where("wanted IS NOT NULL AND found IS NOT NULL")
        .withColumn("entry", sf.explode("entries"))
        .withColumn("seconds", seconds)
        .where("entry.number > 1 AND entry.time_diff_s <> seconds")
    )
    return _finding(
        found,
        "damage",
        "index-time",
        sf.format_string(
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
        .agg(sf.min("physic_offset").alias("first"), sf.max("physic_offset").alias("last"))
    )
    is_behind = sf.col("is_open") & (
        sf.col("physic_offset") > sf.coalesce("last", sf.lit(-1).cast("bigint"))
    )
    is_before = sf.coalesce(sf.col("physic_offset") < sf.col("first"), sf.lit(True))
    severity = sf.when(is_behind, BEHIND).when(is_before, "warning").otherwise("damage")
    more = sf.when(sf.col("severity") == "warning", ", which begins after them").otherwise("")
    first = {name: sf.min_by(name, "physic_offset").alias(name) for name in ("topic", "size")}
    return (
        wanted.where("found IS NULL")
        .join(bounds, "store", "left")
        .groupBy("store", severity.alias("severity"))
        .agg(sf.count("*").alias("count"), sf.min("physic_offset").alias("offset"), *first.values())
        .withColumn("kind", sf.lit("index-missing"))
        .withColumn(
            "detail", sf.format_string("%d records have no key in the index%s", "count", more)
        )
    )


def file_faults(entries: DataFrame) -> DataFrame:
    """Return the faults of the index files themselves."""
    return tagged(entries.where("fault IS NOT NULL"), "fault").select(
        "store", sf.col("physic_offset").alias("offset"), "severity", "kind", "detail"
    )


def tagged(found: DataFrame, column: str) -> DataFrame:
    """Split a text "severity kind: detail" into columns."""
    pattern = r"(?s)^(\w+) ([\w-]+): (.*)$"
    return (
        found.withColumn("severity", sf.regexp_extract(column, pattern, 1))
        .withColumn("kind", sf.regexp_extract(column, pattern, 2))
        .withColumn("detail", sf.regexp_extract(column, pattern, 3))
    )


def _finding(found: DataFrame, severity: str, kind: str, detail: Column) -> DataFrame:
    return found.select(
        *QUEUE,
        "queue_offset",
        sf.col("physic_offset").alias("offset"),
        "size",
        sf.lit(severity).alias("severity"),
        sf.lit(kind).alias("kind"),
        detail.alias("detail"),
    )

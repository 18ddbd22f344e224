"""The audit's transforms: pieces of two logs, joined by offset.

A piece is a record, a BLANK, or a run of damaged bytes; each byte of a log is in one piece, whose
``digest`` is the CRC32 of its bytes.  So two logs are equal if they have the same pieces
(physic_offset, size, digest), and no body leaves the machine that reads it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from hastore.env.real import real_env
from hastore.pipeline.audit.pair import first_absent_byte, first_unlike_byte
from hastore.store.tools.log_directory import find_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

    from hastore.pipeline.audit.pair import OffsetSpan, Pair
    from hastore.store.tools.log_directory import LogDirectory

PIECES: Final = ("physic_offset", "size", "digest", "topic", "segment", "record_ok")
DETAILS: Final = (*PIECES, "queue_id", "queue_offset", "uniq_key", "fault")

SAME: Final = "same"
DIFFERENT: Final = "different"
NOT_IN_REPLICA: Final = "not in replica"
NOT_IN_MASTER: Final = "not in master"


def compare(master: DataFrame, replicas: DataFrame, pairs: Sequence[Pair]) -> DataFrame:
    """Join the pieces of a master with each replica's: a row wherever either has a piece.

    ``status`` is "not in …" if the other log has no file there, or has ended.  Any other piece of
    one side is "different": the other log has other bytes there, or the same ones within damage.
    """
    stores = sf.array(*(sf.lit(pair.replica.store) for pair in pairs))
    left = _renamed(master, "m").withColumn("replica", sf.explode(stores))
    right = _renamed(replicas, "r").withColumnRenamed("r_store", "replica")
    joined = left.join(right, on=["replica", "physic_offset"], how="full_outer")
    in_master, in_replica = sf.col("m_size").isNotNull(), sf.col("r_size").isNotNull()
    is_same = (sf.col("m_size") == sf.col("r_size")) & (sf.col("m_digest") == sf.col("r_digest"))
    only_master = _is_in([(pair.replica.store, pair.missing_in_replica) for pair in pairs])
    only_replica = _is_in([(pair.replica.store, pair.missing_in_master) for pair in pairs])
    status = (
        sf.when(is_same, SAME)
        .when(in_master & ~in_replica & only_master, NOT_IN_REPLICA)
        .when(in_replica & ~in_master & only_replica, NOT_IN_MASTER)
        .otherwise(DIFFERENT)
    )
    return joined.select(
        "replica",
        "physic_offset",
        status.alias("status"),
        sf.greatest("m_size", "r_size").alias("size"),
        sf.coalesce("m_segment", "r_segment").alias("segment"),
        sf.coalesce("m_topic", "r_topic").alias("topic"),
        (
            sf.coalesce("m_record_ok", "r_record_ok") & sf.coalesce("r_record_ok", "m_record_ok")
        ).alias("is_intact"),
        *(name for name in joined.columns if name in _DETAILS_OF_SIDES),
    )


_DETAILS_OF_SIDES: Final = frozenset(
    f"{side}_{name}"
    for side in "mr"
    for name in ("size", "topic", "queue_id", "queue_offset", "uniq_key", "fault")
)


def tally(compared: DataFrame) -> DataFrame:
    """Count by replica, status, segment and topic: a small table, however large the logs are."""
    return compared.groupBy("replica", "status", "segment", "topic").agg(
        sf.count("*").alias("pieces"),
        sf.count("topic").alias("messages"),
        sf.sum("size").cast("bigint").alias("bytes"),
        sf.min("physic_offset").alias("first_offset"),
        sf.max("physic_offset").alias("last_offset"),
        sf.min(sf.when(~sf.col("is_intact"), sf.col("physic_offset"))).alias("first_damage"),
    )


def total(tallies: DataFrame, *by: str) -> DataFrame:
    """Add up tallies by some of their columns."""
    return tallies.groupBy(*by).agg(
        sf.sum("pieces").alias("pieces"),
        sf.sum("messages").alias("messages"),
        sf.sum("bytes").alias("bytes"),
        sf.min("first_offset").alias("first_offset"),
        sf.max("last_offset").alias("last_offset"),
        sf.min("first_damage").alias("first_damage"),
    )


def by_place(tallies: DataFrame, column: str) -> DataFrame:
    """Count pieces by status for each value of ``column`` where the logs are not the same.

    Fillers and damage have no topic, so their row has none.
    """
    counts = [
        sf.sum(sf.when(sf.col("status") == status, sf.col("pieces")).otherwise(0)).alias(name)
        for status, name in (
            (SAME, "same"),
            (DIFFERENT, "different"),
            (NOT_IN_REPLICA, "not_in_replica"),
            (NOT_IN_MASTER, "not_in_master"),
        )
    ]
    is_apart = sf.greatest("different", "not_in_replica", "not_in_master") > 0
    return (
        tallies.groupBy("replica", column).agg(*counts).where(is_apart).orderBy("replica", column)
    )


def differing(compared: DataFrame, count: int | None = None) -> DataFrame:
    """Return all places that differ, or the first ``count`` of each replica."""
    places = compared.where(sf.col("status") == DIFFERENT)
    if count is None:
        return places
    of_replica = Window.partitionBy("replica").orderBy("physic_offset")
    numbered = places.withColumn("number", sf.row_number().over(of_replica))
    return numbered.where(sf.col("number") <= count).drop("number")


def findings(places: DataFrame, pairs: Sequence[Pair]) -> DataFrame:
    """Describe both sides of each differing place, and add its first differing byte."""
    ends = {pair.replica.store: pair.common.end for pair in pairs}
    unlike = sf.udf(
        functools.partial(_unlike_byte, pairs[0].master.store, ends),
        "bigint",
        useArrow=False,  # Arrow would ask for pandas
    )
    return places.select(
        "replica",
        "physic_offset",
        unlike("replica", "physic_offset", "size").alias("differs_at"),
        "segment",
        "topic",
        _described("m").alias("on_master"),
        _described("r").alias("on_replica"),
    )


def _renamed(pieces: DataFrame, side: str) -> DataFrame:
    return pieces.select(
        "physic_offset",
        *(
            sf.col(name).alias(f"{side}_{name}")
            for name in pieces.columns
            if name != "physic_offset"
        ),
    )


def _is_in(spans_of: Iterable[tuple[str, Iterable[OffsetSpan]]]) -> Column:
    offset, found = sf.col("physic_offset"), sf.lit(False)
    for store, spans in spans_of:
        inside = sf.lit(False)
        for span in spans:
            inside |= (offset >= span.start) & (offset < span.end)
        if spans:
            found |= (sf.col("replica") == store) & inside
    return found


def _described(side: str) -> Column:
    """Return a one-line description of one side."""
    size, topic, fault = sf.col(f"{side}_size"), sf.col(f"{side}_topic"), sf.col(f"{side}_fault")
    place = (sf.col(f"{side}_{name}") for name in ("queue_id", "queue_offset"))
    message = sf.format_string("%s/%d @ %d, %d bytes", topic, *place, size)
    key = sf.coalesce(sf.concat(sf.lit(", id "), sf.col(f"{side}_uniq_key")), sf.lit(""))
    text = sf.concat(message, key, sf.coalesce(sf.concat(sf.lit("; "), fault), sf.lit("")))
    line = (
        sf.when(size.isNull(), "no record begins here")
        .when(fault.isNotNull() & topic.isNull(), fault)
        .when(topic.isNull(), sf.format_string("filler, %d bytes", size))
        .otherwise(text)
    )
    # A damaged record may hold control characters, which must not reach a terminal.
    return sf.regexp_replace(line, r"\p{Cntrl}+", "?")


def _unlike_byte(
    master: str, ends: dict[str, int], replica: str, offset: int, size: int
) -> int | None:
    """Return the first byte that differs or is absent.  Runs in Spark's Python workers."""
    disk = real_env().disk
    logs = _found(master, ends[replica]), _found(replica, ends[replica])
    end = min(offset + size, ends[replica])
    unlike = first_unlike_byte(disk, *logs, offset, end)
    absent = [first_absent_byte(log, offset, end) for log in logs]
    return min((at for at in (unlike, *absent) if at is not None), default=None)


@functools.lru_cache(maxsize=64)
def _found(store: str, _end: int) -> LogDirectory:
    """Return a log's files.  Workers outlive a job, so the cache also depends on the log's end."""
    return find_log(real_env().disk, store)

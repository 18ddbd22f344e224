"""``audit``: compare replicas with their master, record by record."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any, Final

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.audit.pair import OffsetSpan, Pair, first_unlike_byte, inspect_side
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.store.tools.log_diff import DiffVerdict, verdict_of
from hastore.store.tools.log_directory import find_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from hastore.env.interface import Disk
    from hastore.pipeline.audit.pair import Side

INFO: Final = JobInfo(
    name="audit",
    summary="Compare replicas with their master: the first difference, and all others.",
    description="""
    Reads the logs of a master and of its replicas, which may be copies of Java brokers'
    directories, may be in use, and may be damaged. Everything in a log (records, the fillers at
    the ends of files, damage) is joined by its offset, its size and the CRC32 of all its bytes;
    no body leaves the machine that reads it. Each row is a place where the two logs have different
    bytes: differs_at is the first such byte, on_master and on_replica describe both sides. Ranges
    that only one log has, because the other has expired them, lacks files or is behind, are listed
    as missing. A replica that is behind, or has expired more, is no finding; with --strict it is,
    and so is one ahead of its master. by_segment and by_topic count records, fillers and damage
    (which have no topic). The verdict is that of log diff: equal, prefix, different or disjoint.
    With --out all rows go to DIR/audit.parquet.
    """,
    examples=(
        "hastore pipeline run audit D1 D2",
        "hastore pipeline run audit D1 D2 D3 -o json | jq .summary.replicas",
        "hastore pipeline run audit /java/master/commitlog /java/slave/commitlog --out found",
        "hastore pipeline run audit D1 D2 --strict     # exit 4 also where D2 is only behind",
    ),
)
COLUMNS: Final = (
    "replica", "physic_offset", "differs_at", "segment", "topic", "on_master", "on_replica",
)  # fmt: skip
_ROW_DDL: Final = (
    "replica STRING, physic_offset BIGINT, differs_at BIGINT, segment STRING, topic STRING,"
    " on_master STRING, on_replica STRING"
)
_WORST: Final = tuple(
    verdict.value
    for verdict in (
        DiffVerdict.EQUAL,
        DiffVerdict.PREFIX,
        DiffVerdict.DISJOINT,
        DiffVerdict.DIFFERENT,
    )
)
_MISSING_MAX: Final = 100
_PLACES_MIN: Final = 3  # described of each replica, to find its first difference


def audit(
    spark: SparkSession,
    master: str,
    replicas: Sequence[str],
    *,
    strict: bool = False,
    out: str | None = None,
) -> JobResult:
    """Compare each replica (a directory, or a glob of them) with the master.

    Raises NotAStoreError, ConfigError, DiskError.
    """
    # INFO needs no Spark.
    from hastore.pipeline.audit.tables import DIFFERENT, by_place, tally, total  # noqa: PLC0415
    from hastore.pipeline.source.options import find_stores  # noqa: PLC0415

    if not replicas:
        raise ConfigError("no replica is named", hint="hastore pipeline run audit MASTER REPLICA")
    disk = real_env().disk
    ours = inspect_side(disk, master)
    pairs = [
        Pair(master=ours, replica=inspect_side(disk, store)) for store in find_stores(replicas)
    ]
    tallies = tally(_compared(spark, pairs)).persist()
    try:
        totals = total(tallies, "replica", "status").collect()
        of_pair = [
            {row["status"]: row.asDict() for row in totals if row["replica"] == pair.replica.store}
            for pair in pairs
        ]
        places = {
            f"by_{column}": [
                row.asDict() for row in by_place(tallies, column).limit(ROWS_MAX).collect()
            ]
            for column in ("segment", "topic")
        }
    finally:
        tallies.unpersist()
    apart = [
        (pair, counts[DIFFERENT])
        for pair, counts in zip(pairs, of_pair, strict=True)
        if DIFFERENT in counts
    ]
    found = _described(spark, apart)
    shown_max = max(ROWS_MAX // len(pairs), 1)
    rows: list[dict[str, Any]] = []
    tails: list[dict[str, Any]] = []
    summaries = []
    for pair, counts in zip(pairs, of_pair, strict=True):
        own_rows = [row for row in found if row["replica"] == pair.replica.store]
        own_tails = _tail_rows(disk, pair)
        own_rows += own_tails
        tails += own_tails
        rows += own_rows[:shown_max]
        summaries.append(_summary(pair, counts, own_rows, strict=strict))
    return JobResult(
        name="audit",
        columns=COLUMNS,
        rows=rows[:ROWS_MAX],
        summary={
            "verdict": max((one["verdict"] for one in summaries), key=_WORST.index),
            "master": master,
            "replicas": summaries,
            "missing": [row for pair in pairs for row in _missing(pair)],
            **places,
        },
        found=any(one.pop("is_finding") for one in summaries),
        files=_write(spark, apart, tails, out),
    )


def _compared(
    spark: SparkSession,
    pairs: Sequence[Pair],
    *,
    within: OffsetSpan | None = None,
    details: bool = False,
) -> DataFrame:
    """Read the logs up to their ends, and join each replica with the master."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    from hastore.pipeline.audit.tables import DETAILS, PIECES, compare  # noqa: PLC0415
    from hastore.pipeline.spark.table import read  # noqa: PLC0415

    columns = DETAILS if details else PIECES
    start = 0 if within is None else within.start

    def pieces(sides: Sequence[Side], columns: Sequence[str]) -> DataFrame:
        end = max(side.log.max_offset for side in sides)
        end = end if within is None else min(end, within.end)
        stores = [glob.escape(side.store) for side in sides]
        bounds = {"startOffset": start, "endOffset": end}
        frame = read(spark, stores, columns, mode="PERMISSIVE", fillers=True, **bounds)
        # Rows without a digest are missing files, which ``Pair`` knows already.
        return frame.where("digest IS NOT NULL")

    ends = [sf.lit(x) for pair in pairs for x in (pair.replica.store, pair.replica.log.max_offset)]
    replicas = pieces([pair.replica for pair in pairs], (*columns, "store"))
    replicas = replicas.where(sf.col("physic_offset") < sf.create_map(*ends)[sf.col("store")])
    return compare(pieces([pairs[0].master], columns), replicas, pairs)


def _differing(
    spark: SparkSession, apart: Sequence[tuple[Pair, dict[str, Any]]]
) -> tuple[DataFrame, list[Pair]]:
    """Read again from the first differing place to the last, now with all details."""
    pairs = [pair for pair, _ in apart]
    within = OffsetSpan(
        min(counts["first_offset"] for _, counts in apart),
        max(counts["last_offset"] for _, counts in apart) + 1,
    )
    return _compared(spark, pairs, within=within, details=True), pairs


def _described(
    spark: SparkSession, apart: Sequence[tuple[Pair, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Describe the first differing places of each replica."""
    if not apart:
        return []
    from hastore.pipeline.audit.tables import differing, findings  # noqa: PLC0415

    compared, pairs = _differing(spark, apart)
    first = differing(compared, max(ROWS_MAX // len(pairs), _PLACES_MIN))
    found = findings(first, pairs).orderBy("replica", "physic_offset")
    return [row.asDict() for row in found.collect()]


def _tail_rows(disk: Disk, pair: Pair) -> list[dict[str, Any]]:
    """Return a row if one log ends in damage whose bytes differ from the other log.

    A last record that was copied only in part does not differ: the log is behind.
    """
    for side, other in ((pair.replica, pair.master), (pair.master, pair.replica)):
        tail = side.log.damaged_tail
        if tail is None or tail.physic_offset >= other.log.max_offset:
            continue
        logs = find_log(disk, pair.master.store), find_log(disk, pair.replica.store)
        end = min(tail.next_offset, other.log.max_offset)
        unlike = first_unlike_byte(disk, *logs, tail.physic_offset, end)
        if unlike is not None:
            texts = ["unreadable, then the log ends", "more of the log"]
            ours = texts if side is pair.master else texts[::-1]
            return [
                dict.fromkeys(COLUMNS)
                | {
                    "replica": pair.replica.store,
                    "physic_offset": tail.physic_offset,
                    "differs_at": unlike,
                    "on_master": ours[0],
                    "on_replica": ours[1],
                }
            ]
    return []


def _summary(
    pair: Pair, counts: dict[str, dict[str, Any]], rows: list[dict[str, Any]], *, strict: bool
) -> dict[str, Any]:
    """Return the verdict on a replica, and counts of its messages."""
    from hastore.pipeline.audit.tables import (  # noqa: PLC0415
        DIFFERENT,
        NOT_IN_MASTER,
        NOT_IN_REPLICA,
        SAME,
    )

    places = [
        row["physic_offset"] if row["differs_at"] is None else row["differs_at"] for row in rows
    ]
    if pair.first_hole is not None:
        places.append(pair.first_hole)
    first = min(places, default=None)
    ours, theirs = pair.master.log, pair.replica.log
    verdict = verdict_of(ours, theirs, first)
    damage = counts.get(SAME, {}).get("first_damage")
    messages = {status: found["messages"] for status, found in counts.items()}
    is_tail = bool(rows) and rows[-1]["segment"] is None
    lacks = bool(pair.missing_in_replica) or theirs.max_offset > ours.max_offset
    is_finding = verdict in {DiffVerdict.DIFFERENT, DiffVerdict.DISJOINT} or damage is not None
    return {
        "replica": pair.replica.store,
        "verdict": verdict.value,
        "common_from": pair.common.start,
        "common_to": pair.common.end,
        "first_difference": first,
        "places_different": counts.get(DIFFERENT, {}).get("pieces", 0) + is_tail,
        "messages_same": messages.get(SAME, 0),
        "not_in_replica": messages.get(NOT_IN_REPLICA, 0),
        "not_in_master": messages.get(NOT_IN_MASTER, 0),
        "bytes_behind": ours.max_offset - theirs.max_offset,
        "damaged_alike_at": damage,
        "is_finding": is_finding or (strict and lacks),
    }


def _missing(pair: Pair) -> list[dict[str, Any]]:
    """List the ranges that only one of two logs has."""
    return [
        {
            "replica": pair.replica.store,
            "missing_in": where,
            "from_offset": span.start,
            "to_offset": span.end,
            "bytes": span.end - span.start,
            "place": _place(pair, span),
        }
        for where, spans in (
            ("replica", pair.missing_in_replica),
            ("master", pair.missing_in_master),
        )
        for span in spans[:_MISSING_MAX]
    ]


def _place(pair: Pair, span: OffsetSpan) -> str:
    common = pair.common
    if span.end <= common.start:
        return "front: expired there, or never copied"
    return "end: not there yet" if span.start >= common.end else "hole: files are missing"


def _write(
    spark: SparkSession,
    apart: Sequence[tuple[Pair, dict[str, Any]]],
    tails: Sequence[dict[str, Any]],
    out: str | None,
) -> tuple[str, ...]:
    """Write all differing places; an empty table if there are none replaces an older one."""
    if out is None:
        return ()
    from hastore.pipeline.audit.tables import differing, findings  # noqa: PLC0415
    from hastore.pipeline.spark.table_file import write_table  # noqa: PLC0415

    found = spark.createDataFrame([tuple(row[name] for name in COLUMNS) for row in tails], _ROW_DDL)
    if apart:
        compared, pairs = _differing(spark, apart)
        found = findings(differing(compared), pairs).unionByName(found)
    return (write_table(found, out, "audit.parquet"),)

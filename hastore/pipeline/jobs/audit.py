"""``audit``: replicas held against their master, record by record."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.audit_pair import Pair, Span, first_unlike_byte, look_at
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.store.log_diff import Verdict
from hastore.store.log_directory import find_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from hastore.env.interface import Disk

INFO: Final = JobInfo(
    name="audit",
    summary="Hold replicas against their master: the first difference, and every one.",
    description="""
    Reads the logs of a master and of its replicas, which may be copies of Java brokers'
    directories, may be in use, and may be damaged. Everything in a log (records, the fillers at
    the ends of files, damage) is joined by its offset, its size and the CRC32 of all its bytes;
    no body leaves the machine that reads it. Each row is a place where both logs have bytes, and
    different ones: differs_at is the first byte that does, on_master and on_replica say what
    stands there. What only one of them has, since the other's front has expired, it lacks files
    or has not come so far, is listed as missing; a replica that is merely behind, or has expired
    more, is no finding (with --strict it is). The verdict is log diff's: equal, prefix, different
    or disjoint. With --out all rows go to DIR/audit.parquet.
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
_WORST: Final = tuple(
    verdict.value
    for verdict in (Verdict.EQUAL, Verdict.PREFIX, Verdict.DISJOINT, Verdict.DIFFERENT)
)
_MISSING_MAX: Final = 100


def audit(
    spark: SparkSession,
    master: str,
    replicas: Sequence[str],
    *,
    strict: bool = False,
    out: str | None = None,
) -> JobResult:
    """Compare each replica with the master.  Raises NotAStoreError, ConfigError, DiskError."""
    from hastore.pipeline.audit_tables import (  # noqa: PLC0415 - INFO needs no Spark
        DIFFERENT,
        by_place,
        tally,
        total,
    )

    if not replicas:
        raise ConfigError("no replica is named", hint="hastore pipeline run audit MASTER REPLICA")
    disk = real_env().disk
    ours = look_at(disk, master)
    pairs = [Pair(master=ours, replica=look_at(disk, replica)) for replica in replicas]
    compared = [_compared(spark, pair) for pair in pairs]
    tallies = tally(functools.reduce(_union, compared)).persist()
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
    shown_max = max(ROWS_MAX // len(pairs), 1)
    rows: list[dict[str, Any]] = []
    differing: list[DataFrame] = []
    judged = []
    for pair, counts in zip(pairs, of_pair, strict=True):
        own_rows: list[dict[str, Any]] = []
        if DIFFERENT in counts:
            frame = _differing(spark, pair, counts[DIFFERENT])
            own_rows = _collected(frame, shown_max)
            differing.append(frame)
        own_rows += _tail_rows(disk, pair)
        rows += own_rows
        judged.append(_judge(pair, counts, own_rows, strict=strict))
    return JobResult(
        name="audit",
        columns=COLUMNS,
        rows=rows[:ROWS_MAX],
        summary={
            "verdict": max((one["verdict"] for one in judged), key=_WORST.index),
            "master": master,
            "replicas": judged,
            "missing": [row for pair in pairs for row in _missing(pair)],
            **places,
        },
        found=any(one.pop("is_finding") for one in judged),
        files=_write(differing, out),
    )


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right)


def _compared(
    spark: SparkSession, pair: Pair, *, within: Span | None = None, details: bool = False
) -> DataFrame:
    """Read both logs up to their ends, and join them."""
    from hastore.pipeline.audit_tables import DETAILS, PIECES, compare  # noqa: PLC0415
    from hastore.pipeline.table import read  # noqa: PLC0415

    columns = DETAILS if details else PIECES
    sides = []
    for side in (pair.master, pair.replica):
        end = side.max_offset if within is None else min(side.max_offset, within.end)
        start = 0 if within is None else within.start
        pieces = read(spark, side.store, columns, fillers=True, startOffset=start, endOffset=end)
        # Files that are missing are known already.
        sides.append(pieces.where("digest IS NOT NULL"))
    return compare(sides[0], sides[1], pair)


def _differing(spark: SparkSession, pair: Pair, counts: dict[str, Any]) -> DataFrame:
    """Describe what differs; reads again, from the first such place to the last."""
    from hastore.pipeline.audit_tables import findings  # noqa: PLC0415

    within = Span(counts["first_offset"], counts["last_offset"] + 1)
    return findings(_compared(spark, pair, within=within, details=True), pair)


def _collected(frame: DataFrame, count: int) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("physic_offset").limit(count).collect()]


def _tail_rows(disk: Disk, pair: Pair) -> list[dict[str, Any]]:
    """Give a row where one log ends in damage that is no part of what the other has there.

    A record that was not copied to its end is: the log is behind, no more.
    """
    for side, other in ((pair.replica, pair.master), (pair.master, pair.replica)):
        tail = side.damaged_tail
        if tail is None or tail.start >= other.max_offset:
            continue
        logs = find_log(disk, pair.master.store), find_log(disk, pair.replica.store)
        end = min(tail.end, other.max_offset)
        unlike = first_unlike_byte(disk, *logs, tail.start, end)
        if unlike is not None:
            texts = ["unreadable, and the log's end", "more of the log"]
            ours = texts if side is pair.master else texts[::-1]
            return [
                dict.fromkeys(COLUMNS)
                | {
                    "replica": pair.replica.store,
                    "physic_offset": tail.start,
                    "differs_at": unlike,
                    "on_master": ours[0],
                    "on_replica": ours[1],
                }
            ]
    return []


def _judge(
    pair: Pair, counts: dict[str, dict[str, Any]], rows: list[dict[str, Any]], *, strict: bool
) -> dict[str, Any]:
    """Say what a replica is to its master, and how many messages are what."""
    from hastore.pipeline.audit_tables import (  # noqa: PLC0415
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
    verdict = pair.verdict(first)
    damage = counts.get(SAME, {}).get("first_damage")
    messages = {status: found["messages"] for status, found in counts.items()}
    is_tail = bool(rows) and rows[-1]["segment"] is None
    is_finding = verdict in {Verdict.DIFFERENT, Verdict.DISJOINT} or damage is not None
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
        "bytes_behind": pair.master.max_offset - pair.replica.max_offset,
        "damaged_alike_at": damage,
        "is_finding": is_finding or (strict and bool(pair.missing_in_replica)),
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


def _place(pair: Pair, span: Span) -> str:
    common = pair.common
    if span.end <= common.start:
        return "front: expired there, or never copied"
    return "end: not there yet" if span.start >= common.end else "hole: files are missing"


def _write(differing: list[DataFrame], out: str | None) -> tuple[str, ...]:
    """Write all that differs, by a temporary name; an empty table where nothing does."""
    if out is None:
        return ()
    from hastore.pipeline.table_file import write_table  # noqa: PLC0415

    if not differing:
        return ()
    return (write_table(functools.reduce(_union, differing), out, "audit.parquet"),)

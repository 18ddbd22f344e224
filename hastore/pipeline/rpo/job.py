"""``rpo``: find every put of a history in the logs that survived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.pipeline.job import ROWS_MAX, JobInfo, JobResult
from hastore.pipeline.rpo.rules import (
    RpoVerdict,
    count_fates,
    fates_by,
    fates_by_survivor,
    tallies_of,
    verdict_of,
)
from hastore.store.tools.log_directory import find_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

INFO: Final = JobInfo(
    name="rpo",
    summary="Was any acknowledged message lost? Every put against the logs that survived.",
    description="""
    Reads a history (JSON lines: every put with its status, as hastore produce --history and
    hastore scenario run --keep write it) and joins it by UNIQ_KEY with the logs that survived a
    failover, one or many; a message survives if one of them has it, intact and with the body that
    was sent. Acknowledged (PUT_OK) messages are kept, lost or duplicated; those whose outcome is
    unknown (no answer, a weaker status) present or absent; failed ones absent, or present though
    they failed. Messages that a SYNC_MASTER acknowledged without waiting for a slave (WAIT=false),
    and all that an ASYNC_MASTER acknowledged, were promised to be in its own log only: their loss
    is counted apart, and wrong only with --strict. Messages that have expired, by a scenario's
    history, are not lost. Rows are examples of wrong puts; the summary counts everything by fate,
    status and survivor, and the first 100 topics and seconds. With --out a row for every put goes
    to DIR/rpo.parquet.
    """,
    examples=(
        "hastore pipeline run rpo history.jsonl D2",
        "hastore pipeline run rpo 'producers/*.jsonl' D2 D3 -o json | jq .summary.verdict",
        "hastore pipeline run rpo kept/promotion kept/promotion/b",
        "hastore pipeline run rpo history.jsonl D2 --out found",
    ),
)


def rpo(
    spark: SparkSession,
    history: str,
    survivors: Sequence[str],
    *,
    strict: bool = False,
    out: str | None = None,
) -> JobResult:
    """Join a history with the surviving stores (directories, or globs of them).

    Raises NotAHistoryError, NotAStoreError, ConfigError, DiskError.
    """
    from hastore.pipeline.rpo import history_lines  # noqa: PLC0415
    from hastore.pipeline.rpo import tables as rpo_tables  # noqa: PLC0415
    from hastore.pipeline.source.options import find_stores  # noqa: PLC0415
    from hastore.pipeline.spark.table import read  # noqa: PLC0415

    files = history_lines.find_histories(history)
    if not survivors:
        raise ConfigError("no survivor is named", hint="hastore pipeline run rpo HISTORY STORE")
    stores = find_stores(survivors)
    for store in stores:
        find_log(real_env().disk, store)
    lines = history_lines.read_lines(spark, files).persist()
    try:
        puts = history_lines.collect_puts(lines)
        history_lines.check(lines, puts)
        puts = history_lines.with_removals(history_lines.with_promise(puts, lines), lines)
        found = rpo_tables.copies(read(spark, stores, rpo_tables.RECORDS), stores)
        fates = rpo_tables.join_fates(puts, found, stores).persist()
        try:
            return _result(fates, history, stores, strict=strict, out=out)
        finally:
            fates.unpersist()
    finally:
        lines.unpersist()


def _result(
    fates: DataFrame, history: str, stores: Sequence[str], *, strict: bool, out: str | None
) -> JobResult:
    from hastore.pipeline.rpo import history_lines  # noqa: PLC0415
    from hastore.pipeline.rpo import tables as rpo_tables  # noqa: PLC0415

    counts = rpo_tables.count(fates, stores)
    tallies = tallies_of(counts)
    if not tallies:  # else the verdict would be that nothing is lost
        raise history_lines.NotAHistoryError(
            f"{history} holds no put",
            hint="hastore produce --history FILE and hastore scenario run --keep write histories",
        )
    verdict = verdict_of(tallies, strict=strict)
    numbers = {fate.name.lower(): number for fate, number in count_fates(tallies).items()}
    rows: list[dict[str, Any]] = []
    by_second: list[dict[str, Any]] = []
    if verdict is not RpoVerdict.KEPT:
        wrong = rpo_tables.wrong(fates, strict=strict)
        rows = _rows(rpo_tables.examples(wrong, stores))
        by_second = _rows(rpo_tables.by_second(wrong))
    return JobResult(
        name="rpo",
        columns=rpo_tables.EXAMPLES,
        rows=rows,
        summary={
            "verdict": verdict.value,
            "puts": sum(tally.puts for tally in tallies),
            "acknowledged_kept": numbers.pop("acknowledged_kept"),
            **numbers,
            "altered": sum(tally.altered for tally in tallies),
            "by_status": fates_by(counts, "status"),
            "by_topic": fates_by(counts, "topic")[:ROWS_MAX],
            "by_second": by_second,
            "by_survivor": fates_by_survivor(counts, stores),
            "tallies": [attrs.asdict(tally) for tally in tallies],
        },
        found=verdict is not RpoVerdict.KEPT,
        files=_write(fates, stores, out),
    )


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.limit(ROWS_MAX).collect()]


def _write(fates: DataFrame, stores: Sequence[str], out: str | None) -> tuple[str, ...]:
    if out is None:
        return ()
    from hastore.pipeline.rpo.tables import described  # noqa: PLC0415
    from hastore.pipeline.spark.table_file import write_table  # noqa: PLC0415

    puts = described(fates, stores).where("op IS NOT NULL").drop("second")
    return (write_table(puts, out, "rpo.parquet"),)

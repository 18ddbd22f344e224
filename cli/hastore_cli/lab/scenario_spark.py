"""``hastore scenario run --spark``: a run's history held against its logs by Spark, too.

The checker has judged already; the job ``rpo`` of the pipeline joins the same history with the same
logs.  Both count how often each rule about where messages are is broken, and must agree.
"""

from __future__ import annotations

import glob
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.pipeline.spark.session import SparkSession
    from hastore_scenarios.judge.result import ScenarioResult


def refuse_without_spark() -> None:
    """Raise ConfigError where Spark or a Java is missing: before a story is told, not after."""
    from hastore_cli.pipeline.run import needs_extra

    with needs_extra():
        if importlib.util.find_spec("pyspark") is None:
            raise ModuleNotFoundError(name="pyspark")
        from hastore.pipeline.spark.java_home import find_java_home

        find_java_home()


def judge_by_spark(results: Sequence[ScenarioResult]) -> Iterator[ScenarioResult]:
    """Yield each result with what Spark says of it; their directories must be there."""
    from hastore_cli.pipeline.run import running_spark

    with running_spark() as spark:
        for result in results:
            yield _judged(spark, result)


def _judged(spark: SparkSession, result: ScenarioResult) -> ScenarioResult:
    from hastore.pipeline.rpo.job import rpo
    from hastore_scenarios.judge.account import Account
    from hastore_scenarios.judge.history import load_history
    from hastore_scenarios.judge.judgement import HISTORY_FILE
    from hastore_scenarios.judge.presence import count_broken, disagreements

    assert result.directory is not None
    folder = Path(result.directory)
    path = folder / HISTORY_FILE
    with path.open(encoding="utf-8") as lines:
        history = load_history(lines)
    nodes = [
        name
        for name in dict.fromkeys(event.node for event in history.events if event.node is not None)
        if _has_log(folder / name)
    ]
    if not nodes or not history.operations:
        return result
    found = rpo(spark, str(path), [glob.escape(str(folder / node)) for node in nodes])
    summary = found.summary
    foreign = sum(line["foreign"] for line in summary["by_survivor"])
    account = Account.of(history.events)
    counts = count_broken(summary["tallies"], foreign, nodes, account)
    told: dict[str, Any] = {
        name: value for name, value in summary.items() if isinstance(value, int | str)
    }
    told["rules"] = {rule.value: count for rule, count in counts.items()}
    told["disagreements"] = (
        [] if result.verdict is None else list(disagreements(counts, result.verdict.counts))
    )
    return attrs.evolve(result, spark=told)


def _has_log(directory: Path) -> bool:
    from hastore.env.real import real_env
    from hastore.errors import NotAStoreError
    from hastore.store.tools.log_directory import find_log

    try:
        find_log(real_env().disk, str(directory))
    except NotAStoreError:
        return False
    return True

"""``hastore pipeline run verify|audit|rpo|rebuild|report``: jobs over logs as they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import (
    needs_extra,
    refuse_no_store,
    session_options,
    spark_options,
    stores_argument,
)
from hastore_cli.settings.config_file import config_option, read_store_config
from hastore_cli.settings.param_types import complete_directory, complete_file

if TYPE_CHECKING:
    from hastore.pipeline.job import JobResult
    from hastore.pipeline.spark.session import SparkSession
    from hastore_cli.pipeline.run import RunJob


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run verify D1 D2",
        "hastore pipeline run verify '/data/*' --master spark://10.0.0.1:7077 -o json",
        "hastore pipeline run verify D1 --out found   # all findings, as Parquet",
    ),
    epilog="DIR is a store's directory, or a glob of them. Exit code: 0 intact, 4 damaged; warnings"
    " alone are 0.",
)
@stores_argument
@click.option("--log-only", is_flag=True, help="Leave consume queues and index out.")
@config_option
@spark_options
def verify(
    *,
    dirs: tuple[str, ...],
    log_only: bool,
    config_flag: str | None,
    out: str | None,
    run_job: RunJob,
) -> None:
    """Check logs, and their consume queues and index, record by record.

    Finds the same as `hastore log verify`, in many stores and on many cores.
    """
    config = read_store_config(".", config_flag)
    refuse_no_store(dirs)

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.verify.job import verify as run

        return run(spark, dirs, log_only=log_only, config=config, out=out)

    run_job(call)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run audit D1 D2",
        "hastore pipeline run audit D1 D2 D3 -o json | jq .summary.replicas",
        "hastore pipeline run audit /java/master /java/slave --out found",
    ),
    epilog="Exit code: 4 when a replica differs from the master in their common range, has no"
    " common range, or both are damaged alike; with --strict also when it is behind or ahead.",
)
@click.argument("master_store", metavar="MASTER", shell_complete=complete_directory)
@click.argument(
    "replicas", metavar="REPLICA...", nargs=-1, required=True, shell_complete=complete_directory
)
@click.option("--strict", is_flag=True, help="A replica that is behind or ahead is a finding.")
@spark_options
def audit(
    *,
    master_store: str,
    replicas: tuple[str, ...],
    strict: bool,
    out: str | None,
    run_job: RunJob,
) -> None:
    """Compare logs record by record, and list every difference.

    MASTER and REPLICA are stores, or copies of Java brokers' directories.
    """
    refuse_no_store([master_store, *replicas])

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.audit.job import audit as run_audit

        return run_audit(spark, master_store, replicas, strict=strict, out=out)

    run_job(call)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore produce orders lines.txt --history history.jsonl",
        "hastore pipeline run rpo history.jsonl D2",
        "hastore pipeline run rpo 'puts/*.jsonl' D2 D3 -o json | jq .summary.verdict",
    ),
    epilog="HISTORY is a file, the kept directory of a scenario, or a glob of them. Exit code: 0"
    " kept; 4 an acknowledged message is lost, or a message is duplicated, altered, or stored"
    " although it failed; with --strict also when a message is lost that only its master stored.",
)
@click.argument("history", shell_complete=complete_file)
@click.argument(
    "survivors", metavar="SURVIVOR...", nargs=-1, required=True, shell_complete=complete_directory
)
@click.option(
    "--strict",
    is_flag=True,
    help="Count lost puts that an ASYNC_MASTER acknowledged, or with WAIT=false, too.",
)
@spark_options
def rpo(
    *,
    history: str,
    survivors: tuple[str, ...],
    strict: bool,
    out: str | None,
    run_job: RunJob,
) -> None:
    """Compare every put of a history with the surviving logs.

    A message survives if one of the SURVIVORs (stores, or globs of them) has it.
    """
    refuse_no_store(survivors)
    with needs_extra():
        from hastore.pipeline.rpo.history_lines import find_histories
    find_histories(history)

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.rpo.job import rpo as run_rpo

        return run_rpo(spark, history, survivors, strict=strict, out=out)

    run_job(call)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run rebuild D1",
        "hastore pipeline run rebuild D1 --index -c /etc/hastore/hastore.toml",
        "hastore pipeline run rebuild D1 --out D2",
    ),
    epilog="If killed, the store has the old files or the new ones. Exit code: 4 done, but the log"
    " is damaged; 6 a node runs on it, --out has such files, or messages behind damage would be"
    " left out and --accept-loss is missing.",
)
@click.argument("dir", metavar="DIR", shell_complete=complete_directory)
@click.option("--consumequeue", is_flag=True, help="Build the consume queues again.")
@click.option("--index", is_flag=True, help="Build the index of keys again. [default: both]")
@click.option("--out", type=click.Path(), metavar="DIR", help="Write there, not into the store.")
@click.option("--force", is_flag=True, help="Replace existing files in --out.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Leave out what looks like messages behind damage, and no consume queue names.",
)
@config_option
@session_options
def rebuild(
    *,
    dir: str,  # noqa: A002 - the argument's name in --help
    consumequeue: bool,
    index: bool,
    out: str | None,
    force: bool,
    accept_loss: bool,
    config_flag: str | None,
    run_job: RunJob,
) -> None:
    """Build consume queues and index again from the log; no node may run on the directory.

    Like `hastore log rebuild`, on many cores. The log is only read.
    """
    from hastore.env.real import real_env
    from hastore.store.store_lock import StoreLock
    from hastore.store.tools.log_directory import find_log

    disk = real_env().disk
    log = find_log(disk, dir)  # before Spark is started
    if out is None and log.root is not None:
        StoreLock.take(disk, log.root).release(clean=False)
    config = read_store_config(dir, config_flag)
    is_all = not consumequeue and not index

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.rebuild.job import rebuild as run

        return run(
            spark,
            dir,
            consume_queues=consumequeue or is_all,
            index=index or is_all,
            config=config,
            out=out,
            force=force,
            accept_loss=accept_loss,
        )

    run_job(call)


_BY = ("topic", "tag", "minute", "queue", "key", "duplicate", "gap")


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run report D1 --html report.html",
        "hastore pipeline run report D1 --by key",
        "hastore pipeline run report '/data/*' --out report -o json | jq .summary",
        "hastore pipeline run report D1 --history history.jsonl --html report.html",
    ),
    epilog="DIR is a store's directory, or a glob of them; name only one of a master and its"
    " slaves. Damage is counted but is not an error: verify names it.",
)
@stores_argument
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="topic",
    show_default=True,
    help="Group the table by this; the 100 largest lines are shown.",
)
@click.option(
    "--history",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Puts and their answers from scenario run, produce --history or produce -o json;"
    " repeatable.",
)
@click.option(
    "--metrics",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Output of status -w -o json; repeatable.",
)
@click.option("--html", type=click.Path(), metavar="FILE", help="Write a page with plots.")
@spark_options
def report(
    *,
    dirs: tuple[str, ...],
    by: str,
    history: tuple[str, ...],
    metrics: tuple[str, ...],
    html: str | None,
    out: str | None,
    run_job: RunJob,
) -> None:
    """Summarise logs: traffic, sizes, lags, hot keys, duplicates."""
    refuse_no_store(dirs)
    with needs_extra():
        from hastore.pipeline.report.histories import refuse_missing
    refuse_missing((*history, *metrics))

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.report.job import report as run

        return run(spark, dirs, by=by, history=history, metrics=metrics, html=html, out=out)

    run_job(call)

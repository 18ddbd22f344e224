"""``hastore pipeline run audit``: replicas held against their master."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import refuse_what_is_no_store, run_job, spark_options
from hastore_cli.settings.param_types import complete_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run audit D1 D2",
        "hastore pipeline run audit D1 D2 D3 -o json | jq .summary.replicas",
        "hastore pipeline run audit /java/master /java/slave --out found",
    ),
    epilog="Exit code: 4 where a replica differs from the master in what both hold, has nothing in"
    " common with it, or both are damaged alike; with --strict also where it lacks anything, or is"
    " ahead of the master.",
)
@click.argument("master_store", metavar="MASTER", shell_complete=complete_directory)
@click.argument(
    "replicas", metavar="REPLICA...", nargs=-1, required=True, shell_complete=complete_directory
)
@click.option(
    "--strict", is_flag=True, help="A replica that lacks anything, or has more, is a finding."
)
@spark_options
def audit(
    *,
    master_store: str,
    replicas: tuple[str, ...],
    strict: bool,
    master: str | None,
    conf: dict[str, str],
    output: str,
    out: str | None,
) -> None:
    """Compare logs record by record: the first difference, and every one.

    MASTER and REPLICA are stores, or copies of Java brokers' directories.
    """
    refuse_what_is_no_store([master_store, *replicas])

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.audit.job import audit as run_audit

        return run_audit(spark, master_store, replicas, strict=strict, out=out)

    run_job(call, master=master, conf=conf, output=output)

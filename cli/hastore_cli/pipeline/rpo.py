"""``hastore pipeline run rpo``: what became of acknowledged messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import needs_extra, refuse_what_is_no_store, run_job, spark_options
from hastore_cli.settings.param_types import complete_directory, complete_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore produce orders lines.txt --history history.jsonl",
        "hastore pipeline run rpo history.jsonl D2",
        "hastore pipeline run rpo 'producers/*.jsonl' D2 D3 -o json | jq .summary.verdict",
    ),
    epilog="HISTORY is a file, the directory of a scenario that was kept, or a glob of them. Exit"
    " code: 0 kept; 4 something acknowledged is lost, or a message is there twice, altered, or"
    " though it failed; with --strict also where a message is lost that only its master was to"
    " have.",
)
@click.argument("history", shell_complete=complete_file)
@click.argument(
    "survivors", metavar="SURVIVOR...", nargs=-1, required=True, shell_complete=complete_directory
)
@click.option(
    "--strict",
    is_flag=True,
    help="What an ASYNC_MASTER acknowledged, or a put with WAIT=false, must not be lost either.",
)
@spark_options
def rpo(
    *,
    history: str,
    survivors: tuple[str, ...],
    strict: bool,
    master: str | None,
    conf: dict[str, str],
    output: str,
    out: str | None,
) -> None:
    """Hold every put of a history against the logs that are left.

    A message survives if one of the SURVIVORs (stores, or globs of them) has it.
    """
    refuse_what_is_no_store(survivors)
    with needs_extra():
        from hastore.pipeline.rpo.history_lines import find_histories
    find_histories(history)

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.rpo.job import rpo as run_rpo

        return run_rpo(spark, history, survivors, strict=strict, out=out)

    run_job(call, master=master, conf=conf, output=output)

"""``hastore pipeline run report``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import needs_extra, refuse_what_is_no_store, run_job, spark_options
from hastore_cli.settings.param_types import complete_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult

_BY = ("topic", "tag", "minute", "queue", "key", "duplicate", "gap")


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run report D1 --html report.html",
        "hastore pipeline run report D1 --by key",
        "hastore pipeline run report '/data/*' --out report -o json | jq .summary",
        "hastore pipeline run report D1 --history history.jsonl --html report.html",
    ),
    epilog="DIR is a store's directory, or a glob of them; give one of a master and its slaves."
    " Damage is counted and is no error: verify names it.",
)
@click.argument(
    "dirs", nargs=-1, required=True, metavar="DIR...", shell_complete=complete_directory
)
@click.option(
    "--by",
    type=click.Choice(_BY),
    default="topic",
    show_default=True,
    help="What the lines of the table are; at most 100, the largest.",
)
@click.option(
    "--history",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="Puts and their answers, of scenario run, produce --history or produce -o json; may be"
    " repeated.",
)
@click.option(
    "--metrics",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="What status -w -o json printed; may be repeated.",
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
    master: str | None,
    conf: dict[str, str],
    output: str,
    out: str | None,
) -> None:
    """Tell what logs hold: traffic, sizes, lags, hot keys, duplicates."""
    refuse_what_is_no_store(dirs)
    with needs_extra():
        from hastore.pipeline.report.histories import refuse_missing
    refuse_missing((*history, *metrics))

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.report.job import report as run

        return run(spark, dirs, by=by, history=history, metrics=metrics, html=html, out=out)

    run_job(call, master=master, conf=conf, output=output)

"""``hastore pipeline run export``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.log.options import TIME, TIME_HELP
from hastore_cli.pipeline.run import needs_extra, refuse_what_is_no_store, run_job, session_options
from hastore_cli.settings.param_types import WholeNumber, complete_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run export D1 --to orders.jsonl --topic orders",
        "hastore pipeline run export D1 --to day.csv --start 2026-11-21 --end 2026-11-22",
        "hastore pipeline run export '/data/*' --to all --format parquet   # a directory of parts",
    ),
    epilog=f"DIR is a store's directory, or a glob of them. {TIME_HELP}",
)
@click.argument(
    "dirs", nargs=-1, required=True, metavar="DIR...", shell_complete=complete_directory
)
@click.option(
    "--to",
    required=True,
    type=click.Path(),
    metavar="PATH",
    help="A file that ends with its format, or a directory of parts.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="The format, where PATH does not say it.",
)
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.")
@click.option("--queue", type=WholeNumber(0), metavar="N", help="Only this queue.")
@click.option("--tag", metavar="TAG", help="Only this tag.")
@click.option("--start", type=TIME, metavar="TIME", help="Only what was stored then or later.")
@click.option("--end", type=TIME, metavar="TIME", help="Only what was stored then or earlier.")
@click.option("--from-offset", type=WholeNumber(0), metavar="N", help="Only from this byte on.")
@click.option("--to-offset", type=WholeNumber(0), metavar="N", help="Only before this byte.")
@session_options
def export(
    *,
    dirs: tuple[str, ...],
    to: str,
    file_format: str | None,
    topic: str | None,
    queue: int | None,
    tag: str | None,
    start: int | None,
    end: int | None,
    from_offset: int | None,
    to_offset: int | None,
    master: str | None,
    conf: dict[str, str],
    output: str,
) -> None:
    """Write messages as JSON lines, CSV or Parquet."""
    limits = {
        "topic": topic,
        "queueId": queue,
        "startTime": start,
        "endTime": end,
        "startOffset": from_offset,
        "endOffset": to_offset,
    }
    refuse_what_is_no_store(dirs)
    with needs_extra():
        from hastore.pipeline.transfer.export_job import check_export

        check_export(dirs, to, file_format, limits)

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.transfer.export_job import export as run

        return run(spark, dirs, to, file_format=file_format, tag=tag, **limits)

    run_job(call, master=master, conf=conf, output=output)

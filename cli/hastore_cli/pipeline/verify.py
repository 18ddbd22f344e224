"""``hastore pipeline run verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import refuse_what_is_no_store, run_job, spark_options
from hastore_cli.settings.param_types import complete_directory
from hastore_cli.settings.store_config import config_option, read_store_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run verify D1 D2",
        "hastore pipeline run verify '/data/*' --master spark://10.0.0.1:7077 -o json",
        "hastore pipeline run verify D1 --out found   # all of them, as Parquet",
    ),
    epilog="DIR is a store's directory, or a glob of them. Exit code: 0 whole, 4 damaged; warnings"
    " alone are 0.",
)
@click.argument(
    "dirs", nargs=-1, required=True, metavar="DIR...", shell_complete=complete_directory
)
@click.option("--log-only", is_flag=True, help="Leave consume queues and index out.")
@config_option
@spark_options
def verify(
    *,
    dirs: tuple[str, ...],
    log_only: bool,
    config_flag: str | None,
    master: str | None,
    conf: dict[str, str],
    output: str,
    out: str | None,
) -> None:
    """Check logs, and their consume queues and index, record by record.

    Finds what `hastore log verify` does, in many stores and on many cores.
    """
    config = read_store_config(".", config_flag)
    refuse_what_is_no_store(dirs)

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.verify.job import verify as run

        return run(spark, dirs, log_only=log_only, config=config, out=out)

    run_job(call, master=master, conf=conf, output=output)

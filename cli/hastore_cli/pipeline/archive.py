"""``hastore pipeline run archive``: segments kept as Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.log.options import TIME, wall_clock_ms
from hastore_cli.pipeline.run import run_job, session_options
from hastore_cli.settings.param_types import complete_directory
from hastore_cli.settings.store_config import config_option, read_store_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult

_HOUR_MS: Final = 3_600_000


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run archive D1 --out /archive/n1",
        "hastore pipeline run archive D1 --out /archive/n1 --expired",
        "hastore pipeline run archive D1 --out /archive/n1 --before 7d",
        "hastore pipeline run archive D1 --out /archive/n1 --segments 0,1073741824",
    ),
    epilog="Every worker must see DIR and ARCHIVE at these paths. A second run adds what is missing"
    " and nothing else. Exit code: 6 ARCHIVE has other bytes of a segment, or is no archive.",
)
@click.argument("dir", metavar="DIR", shell_complete=complete_directory)
@click.option(
    "--out", required=True, type=click.Path(), metavar="ARCHIVE", help="Its directory, old or new."
)
@click.option(
    "--segments",
    metavar="NAME,…|all",
    help="These: names of files, or the offsets at which they begin. `all` has the last one, too,"
    " which still grows. [default: all behind which the log has gone on]",
)
@click.option("--before", type=TIME, help="Those whose messages were all stored before then.")
@click.option("--expired", is_flag=True, help="Those that a node may delete by its [store] keep.")
@config_option
@session_options
def archive(
    *,
    dir: str,  # noqa: A002 - the argument's name in --help
    out: str,
    segments: str | None,
    before: int | None,
    expired: bool,
    config_flag: str | None,
    master: str | None,
    conf: dict[str, str],
    output: str,
) -> None:
    """Keep segments as Parquet, by topic and date; restore gives back the same files.

    DIR is a store, or its commitlog.
    """
    from hastore.env.real import real_env
    from hastore.store.tools.log_directory import find_log

    find_log(real_env().disk, dir)  # refused now, not when Spark has been started
    names = None if segments is None else [part.strip() for part in segments.split(",")]
    expired_before_ms = None
    if expired:
        reserved_ms = read_store_config(dir, config_flag).file_reserved_time_h * _HOUR_MS
        expired_before_ms = wall_clock_ms() - reserved_ms

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.archive.job import archive as run

        return run(
            spark,
            dir,
            out=out,
            segments=names,
            before_ms=before,
            expired_before_ms=expired_before_ms,
        )

    run_job(call, master=master, conf=conf, output=output)

"""``hastore pipeline run restore``: segments of an archive as files of a log again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import needs_extra, run_job, session_options
from hastore_cli.settings.param_types import complete_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run restore /archive/n1 --out D2",
        "hastore pipeline run restore /archive/n1 --out D2 --segments 0,1073741824",
    ),
    epilog="Files get their names once all of them are written and checked. Exit code: 4 the"
    " archive is damaged; 6 D2 has other bytes of a segment, or a node runs on it.",
)
@click.argument("archive", metavar="ARCHIVE", shell_complete=complete_directory)
@click.option(
    "--out", required=True, type=click.Path(), metavar="DIR", help="The store, old or new."
)
@click.option(
    "--segments",
    metavar="NAME,…",
    help="These: names of files, or the offsets at which they begin. [default: all]",
)
@session_options
def restore(
    *,
    archive: str,
    out: str,
    segments: str | None,
    master: str | None,
    conf: dict[str, str],
    output: str,
) -> None:
    """Make segments of an archive into files of a log again, byte for byte, in DIR/commitlog."""
    from hastore.env.real import real_env

    with needs_extra():
        from hastore.pipeline.archive.restore import open_manifest
    open_manifest(real_env().disk, archive)  # refused now, not when Spark has been started
    names = None if segments is None else [part.strip() for part in segments.split(",")]

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.archive.restore_job import restore as run

        return run(spark, archive, out=out, segments=names)

    run_job(call, master=master, conf=conf, output=output)

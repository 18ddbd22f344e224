"""``hastore pipeline run rebuild``: consume queues and index from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.pipeline.run import run_job, session_options
from hastore_cli.settings.param_types import complete_directory
from hastore_cli.settings.store_config import config_option, read_store_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hastore.pipeline.job import JobResult


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run rebuild D1",
        "hastore pipeline run rebuild D1 --index -c /etc/hastore/hastore.toml",
        "hastore pipeline run rebuild D1 --out D2",
    ),
    epilog="Killed at any point, the store has the old files or the new ones. Exit code: 4 built"
    " from what is readable of a damaged log; 6 a node runs on it, or --out has such files.",
)
@click.argument("dir", metavar="DIR", shell_complete=complete_directory)
@click.option("--consumequeue", is_flag=True, help="Build the consume queues anew.")
@click.option("--index", is_flag=True, help="Build the index of keys anew. [default: both]")
@click.option("--out", type=click.Path(), metavar="DIR", help="Write there, not into the store.")
@click.option("--force", is_flag=True, help="Replace what --out has already.")
@config_option
@session_options
def rebuild(
    *,
    dir: str,  # noqa: A002 - the argument's name in --help
    consumequeue: bool,
    index: bool,
    out: str | None,
    force: bool,
    config_flag: str | None,
    master: str | None,
    conf: dict[str, str],
    output: str,
) -> None:
    """Build consume queues and index anew from the log; no node may run on the directory.

    The same as `hastore log rebuild`, on many cores. The log is only read.
    """
    from hastore.env.real import real_env
    from hastore.store.store_lock import StoreLock
    from hastore.store.tools.log_directory import find_log

    disk = real_env().disk
    log = find_log(disk, dir)  # refused now, not when Spark has been started
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
        )

    run_job(call, master=master, conf=conf, output=output)

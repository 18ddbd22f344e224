"""``hastore pipeline package``: the zip file for ``--py-files``."""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from hastore.quantities import format_size
from hastore_cli.app.command import ExampleCommand
from hastore_cli.app.terminal import tell
from hastore_cli.pipeline.run import SCHEMA


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline package",
        "hastore pipeline run verify /data/n1 --master yarn --py-files hastore-workers.zip",
        "spark-submit --py-files hastore-workers.zip my_job.py",
    ),
    epilog="Where the executors run, numpy, pyarrow and isal must be installed; a zip file cannot"
    " bring compiled packages. The driver needs hastore itself.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    default="hastore-workers.zip",
    show_default=True,
    metavar="FILE",
    help="Where it goes; a file that is there is replaced.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"], case_sensitive=False),
    default="table",
    show_default=True,
)
def package(*, out: str, output: str) -> None:
    """Build the file that brings hastore to executors which do not have it."""
    from hastore.env.real import real_env
    from hastore.pipeline.spark.worker_package import NEEDED, build_worker_package

    data = build_worker_package()
    disk = real_env().disk
    disk.make_dirs(str(Path(out).absolute().parent))
    disk.write_file(out, data)
    if output == "json":
        document = {"schema": SCHEMA, "path": out, "size": len(data), "needs": list(NEEDED)}
        tell(json.dumps(document))
        return
    tell(f"wrote  {out}   {format_size(len(data))}")
    tell(f"use    --py-files {out}   executors also need {', '.join(NEEDED)}")

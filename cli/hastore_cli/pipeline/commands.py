"""``hastore pipeline list|show|package|run``: jobs over logs, on Spark.

Nothing here imports Spark: the list is also for people who have not installed it, and help must be
quick.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore.quantities import format_size
from hastore_cli.app.command import ExampleCommand, LazyGroup, output_option
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import make_console, style, tell
from hastore_cli.pipeline.run import SCHEMA, needs_extra

if TYPE_CHECKING:
    from hastore.pipeline.job import JobInfo

_JOBS: Final = {
    "verify": ("pipeline.jobs:verify", "Check logs, consume queues and index."),
    "audit": ("pipeline.jobs:audit", "Compare replicas with their master."),
    "rpo": ("pipeline.jobs:rpo", "Find acknowledged messages that were lost."),
    "rebuild": ("pipeline.jobs:rebuild", "Build consume queues and index from the log."),
    "archive": ("pipeline.transfer:archive", "Keep segments as Parquet, by topic and date."),
    "report": ("pipeline.jobs:report", "Summarise logs as tables and as a page."),
    "restore": ("pipeline.transfer:restore", "Restore an archive's segments as a log."),
    "export": ("pipeline.transfer:export", "Write messages as JSON lines, CSV or Parquet."),
    "import": ("pipeline.transfer:import_command", "Send an export's messages to a master."),
}

# Jobs that share a folder; another job is ``job`` in its own folder.
_MODULES: Final = {
    "restore": "archive.restore_job",
    "export": "transfer.export_job",
    "import": "transfer.import_job",
}


@click.group(
    name="pipeline",
    cls=LazyGroup,
    examples=(
        "pip install 'PATH_OF_THE_CLONE[spark]'",
        "hastore pipeline list",
        "hastore pipeline show verify",
        "hastore pipeline run verify D1 D2",
    ),
)
def pipeline_group() -> None:
    """Run jobs over the logs of masters and slaves on Spark, here or on a cluster."""


@pipeline_group.command(
    name="list",
    cls=ExampleCommand,
    examples=("hastore pipeline list", "hastore pipeline list -o json | jq -r '.jobs[].name'"),
)
@output_option()
def list_jobs(*, output: str) -> None:
    """List the jobs."""
    if output == "json":
        jobs = [{"name": name, "summary": summary} for name, (_, summary) in _JOBS.items()]
        echo_json({"schema": SCHEMA, "jobs": jobs})
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, (_, summary) in _JOBS.items():
        table.add_row(name, summary)
    make_console().print(table)


@pipeline_group.command(
    cls=ExampleCommand,
    examples=("hastore pipeline show verify",),
    epilog="The options of a job: hastore pipeline run JOB --help",
)
@click.argument("job", type=click.Choice(list(_JOBS)))
@output_option()
def show(*, job: str, output: str) -> None:
    """Show what a job reads, and what its columns mean."""
    with needs_extra():
        module = importlib.import_module(job_module(job))
    info: JobInfo = module.INFO
    if output == "json":
        import attrs

        echo_json({"schema": SCHEMA, "job": attrs.asdict(info)})
        return
    tell(f"{style(info.name, bold=True)}: {info.summary}")
    tell()
    make_console().print(" ".join(info.description.split()), width=100)
    tell()
    for line in info.examples:
        tell(f"  {line}")


def job_module(job: str) -> str:
    """Return the name of the module of a job."""
    return f"hastore.pipeline.{_MODULES.get(job, f'{job}.job')}"


@pipeline_group.group(
    name="run",
    cls=LazyGroup,
    lazy=_JOBS,
    examples=(
        "hastore pipeline run verify D1 D2",
        "hastore pipeline run verify --help",
        "hastore pipeline run verify '/data/*' --master spark://10.0.0.1:7077 -o json",
    ),
    epilog="Exit code: 4 when a job finds something wrong.",
)
def run_group() -> None:
    """Run a job: on this machine, or with --master on a cluster that sees the same directories."""


@pipeline_group.command(
    cls=ExampleCommand,
    short_help="Build the file that executors need.",
    examples=(
        "hastore pipeline package",
        "hastore pipeline run verify D1 --master yarn --py-files hastore-workers.zip",
        "spark-submit --py-files hastore-workers.zip my_job.py",
    ),
    epilog="The executors also need numpy, pyarrow and isal installed: a zip file cannot hold"
    " compiled packages. The driver needs hastore itself.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    default="hastore-workers.zip",
    show_default=True,
    metavar="FILE",
    help="The file to write; an existing one is replaced.",
)
@output_option()
def package(*, out: str, output: str) -> None:
    """Build the file that brings hastore to executors without it."""
    from hastore.env.real import real_env
    from hastore.pipeline.spark.worker_package import NEEDED, build_worker_package

    data = build_worker_package()
    disk = real_env().disk
    disk.make_dirs(str(Path(out).absolute().parent))
    disk.write_file(out, data)
    if output == "json":
        document = {"schema": SCHEMA, "path": out, "size": len(data), "needs": list(NEEDED)}
        echo_json(document)
        return
    tell(f"wrote  {out}   {format_size(len(data))}")
    tell(f"use    --py-files {out}   executors also need {', '.join(NEEDED)}")

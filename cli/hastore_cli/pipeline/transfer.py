"""``hastore pipeline run archive|restore|export|import``: messages in other formats, and back."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Final

import rich_click as click
from click.exceptions import Exit

from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import ExampleCommand, output_option
from hastore_cli.app.output import wall_clock_ms
from hastore_cli.app.progress_bar import ReadingBar
from hastore_cli.app.terminal import say
from hastore_cli.log.options import TIME, TIME_HELP, WINDOW, unconfirmed_option
from hastore_cli.messages.printer import raw_option
from hastore_cli.node.options import address_of
from hastore_cli.pipeline.run import (
    EXIT_FOUND,
    needs_extra,
    print_result,
    refuse_no_store,
    session_options,
    stores_argument,
)
from hastore_cli.settings.config_file import config_option, read_store_config
from hastore_cli.settings.param_types import WholeNumber, complete_directory

if TYPE_CHECKING:
    from hastore.pipeline.job import JobResult
    from hastore.pipeline.spark.session import SparkSession
    from hastore_cli.app.times import TimeWindow
    from hastore_cli.pipeline.run import RunJob

_HOUR_MS: Final = 3_600_000


def _parse_segments(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run archive D1 --out /archive/n1",
        "hastore pipeline run archive D1 --out /archive/n1 --expired",
        "hastore pipeline run archive D1 --out /archive/n1 --before 7d",
        "hastore pipeline run archive D1 --out /archive/n1 --segments 0,1073741824",
    ),
    epilog="Every worker must see DIR and ARCHIVE at these paths. A second run adds only what is"
    " missing. Exit code: 6 ARCHIVE has other bytes of a segment, or is not an archive.",
)
@click.argument("dir", metavar="DIR", shell_complete=complete_directory)
@click.option(
    "--out", required=True, type=click.Path(), metavar="ARCHIVE", help="Existing or new directory."
)
@click.option(
    "--segments",
    metavar="NAME,…|all",
    callback=_parse_segments,
    help="Names of log files, or their first offsets. `all` includes the last file, which still"
    " grows. [default: all but the last]",
)
@click.option("--before", type=TIME, help="Segments whose messages were all stored before then.")
@click.option(
    "--expired", is_flag=True, help="Segments that a node may delete by its [store] keep."
)
@config_option
@session_options
def archive(
    *,
    dir: str,  # noqa: A002 - the argument's name in --help
    out: str,
    segments: list[str] | None,
    before: int | None,
    expired: bool,
    config_flag: str | None,
    run_job: RunJob,
) -> None:
    """Archive segments as Parquet, by topic and date; restore makes the same files of them.

    DIR is a store, or its commitlog.
    """
    from hastore.env.real import real_env
    from hastore.store.tools.log_directory import find_log

    find_log(real_env().disk, dir)  # before Spark is started
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
            segments=segments,
            before_ms=before,
            expired_before_ms=expired_before_ms,
        )

    run_job(call)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run restore /archive/n1 --out D2",
        "hastore pipeline run restore /archive/n1 --out D2 --segments 0,1073741824",
    ),
    epilog="Files are renamed to their names once all are written and checked. Exit code: 4 the"
    " archive is damaged; 6 D2 has other bytes of a segment, or a node runs on it.",
)
@click.argument("archive", metavar="ARCHIVE", shell_complete=complete_directory)
@click.option(
    "--out", required=True, type=click.Path(), metavar="DIR", help="Existing or new store."
)
@click.option(
    "--segments",
    metavar="NAME,…",
    callback=_parse_segments,
    help="Names of log files, or their first offsets. [default: all]",
)
@session_options
def restore(
    *,
    archive: str,
    out: str,
    segments: list[str] | None,
    run_job: RunJob,
) -> None:
    """Restore segments of an archive as files of a log, byte for byte, in DIR/commitlog."""
    from hastore.env.real import real_env

    with needs_extra():
        from hastore.pipeline.archive.restore import open_manifest
    open_manifest(real_env().disk, archive)  # before Spark is started

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.archive.restore_job import restore as run

        return run(spark, archive, out=out, segments=segments)

    run_job(call)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run export D1 --to orders.jsonl --topic orders",
        "hastore pipeline run export D1 --to day.csv --time 2026-11-21..2026-11-22",
        "hastore pipeline run export '/data/*' --to all --format parquet   # a folder",
    ),
    epilog=f"DIR is a store's directory, or a glob of them. {TIME_HELP}",
)
@stores_argument
@click.option(
    "--to",
    required=True,
    type=click.Path(),
    metavar="PATH",
    help="A file with its format as extension, or a directory of parts.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="The format, if PATH does not name it.",
)
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.")
@click.option("-q", "--queue", type=WholeNumber(0), metavar="N", help="Only this queue.")
@click.option("--tag", metavar="TAG", help="Only this tag.")
@click.option(
    "--time",
    "window",
    type=WINDOW,
    metavar="T1..T2",
    help="Only messages stored from T1 to before T2, as of `hastore get`.",
)
@click.option("--start", type=TIME, hidden=True)  # of 0.1.0, as is --end, which is included
@click.option("--end", type=TIME, hidden=True)
@click.option("--from-offset", type=WholeNumber(0), metavar="N", help="Only from this offset on.")
@click.option("--to-offset", type=WholeNumber(0), metavar="N", help="Only before this offset.")
@unconfirmed_option
@raw_option
@session_options
def export(
    *,
    dirs: tuple[str, ...],
    to: str,
    file_format: str | None,
    topic: str | None,
    queue: int | None,
    tag: str | None,
    window: TimeWindow | None,
    start: int | None,
    end: int | None,
    from_offset: int | None,
    to_offset: int | None,
    unconfirmed: bool,
    raw: bool,
    run_job: RunJob,
) -> None:
    """Write messages as JSON lines, CSV or Parquet."""
    if start is not None or end is not None:
        if window is not None:
            raise click.UsageError("--time has both ends: leave --start and --end out")
        say(
            "note: --start and --end end with the next release: use --time T1..T2, which leaves T2"
            " out (--end includes it)"
        )
    elif window is not None:
        start = window.begin_ms
        end = None if window.end_ms is None else window.end_ms - 1  # endTime is included
    limits = {
        "topic": topic,
        "queueId": queue,
        "startTime": start,
        "endTime": end,
        "startOffset": from_offset,
        "endOffset": to_offset,
    }
    refuse_no_store(dirs)
    with needs_extra():
        from hastore.pipeline.transfer.export_job import check_export

        check_export(dirs, to, file_format, limits)

    def call(spark: SparkSession) -> JobResult:
        from hastore.pipeline.transfer.export_job import export as run

        return run(
            spark,
            dirs,
            to,
            file_format=file_format,
            tag=tag,
            unconfirmed=unconfirmed,
            raw_bodies=raw,
            **limits,
        )

    run_job(call)


@click.command(
    name="import",
    cls=AskingCommand,
    examples=(
        "hastore pipeline run import orders.jsonl --to 127.0.0.1:10911",
        "hastore pipeline run import parts --to D1 --skip 20000",
    ),
    epilog="PATH is a file or a directory of parts that export wrote. Exit code: 3 the master does"
    " not answer; 4 a message was not stored, or its outcome is unknown. Continue with the --skip"
    " that the result names; report --by duplicate finds messages that were sent twice.",
)
@click.argument("path", type=click.Path(), metavar="PATH")
@click.option(
    "--to",
    required=True,
    metavar="H:P|DIR",
    shell_complete=complete_directory,
    help="The master: its client port, or its data directory.",
)
@click.option(
    "--skip",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Leave out the first N rows, which were sent before.",
)
@output_option()
def import_command(*, path: str, to: str, skip: int, output: str) -> None:
    """Send the messages of an export to a master, in their order."""
    with needs_extra(), ReadingBar("sending", 0, counts=True) as bar:
        from hastore.pipeline.transfer.import_job import INTERRUPTED, import_messages
        from hastore_cli.acl.access_key import access_key
        from hastore_cli.acl.asking_command import client_tls

        address = address_of(to)
        result = import_messages(
            path,
            address,
            skip=skip,
            on_progress=bar.on_progress,
            access_key=access_key(),
            tls=client_tls(),
        )
    print_result(result, output)
    if result.found:
        sys.stdout.flush()
        is_interrupted = result.summary.get("stopped_because") == INTERRUPTED
        raise Exit(128 + signal.SIGINT if is_interrupted else EXIT_FOUND)

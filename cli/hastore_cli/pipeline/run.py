"""Runs one job of the pipeline: its options, the session, progress, the result, the exit code.

A job's command looks like this; its imports are in ``call``, so that --help works without Spark::

    @click.command(cls=ExampleCommand, examples=…)
    @click.argument("dir", …)
    @spark_options
    def verify(*, dir, out, run_job):
        def call(spark):
            from hastore.pipeline.verify.job import verify
            return verify(spark, dir, out=out)
        run_job(call)
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from click.exceptions import Exit

from hastore_cli.app.command import output_option
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import escaped, make_console, say, style, tell
from hastore_cli.log.options import quiet_logging
from hastore_cli.settings.param_types import complete_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.table import Table

    from hastore.pipeline.job import JobResult
    from hastore.pipeline.spark.session import SparkSession

    # Runs a job in the session of a command's options, and prints its result; see ``_run_job``.
    RunJob = Callable[[Callable[[SparkSession], JobResult]], None]

SCHEMA: Final = "hastore.pipeline/1"
EXIT_FOUND: Final = 4
_EXTRA: Final = frozenset({"matplotlib", "numpy", "py4j", "pyarrow", "pyspark"})
_PROGRESS_INTERVAL_S: Final = 0.25


def _parse_conf(
    _ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param=param)
        pairs[name.strip()] = value
    return pairs


def _check_py_files(
    _ctx: click.Context, param: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    for name in names:
        if "," in name:  # Spark separates files by commas
            raise click.BadParameter(f"{name!r} has a comma", param=param)
    return names


stores_argument: Final = click.argument(
    "dirs", nargs=-1, required=True, metavar="DIR...", shell_complete=complete_directory
)


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``out`` to what ``session_options`` adds."""
    out = click.option(
        "--out", type=click.Path(), metavar="DIR", help="Also write the findings there."
    )
    return out(session_options(command))


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a session; the command gets ``run_job``, which runs a job in it."""

    @functools.wraps(command)
    def with_session(
        *,
        master: str | None,
        conf: dict[str, str],
        py_files: tuple[str, ...],
        output: str,
        **chosen: Any,
    ) -> None:
        if py_files:
            conf = {"spark.submit.pyFiles": ",".join(py_files)} | conf
        run_job = functools.partial(_run_job, master=master, conf=conf, output=output)
        command(**chosen, run_job=run_job)

    with_options: Callable[..., Any] = with_session
    for option in reversed(
        (
            output_option(),
            click.option(
                "--master",
                metavar="URL",
                help="local[N], spark://HOST:PORT, yarn, k8s://… [default: local[*]]",
            ),
            click.option(
                "--conf",
                multiple=True,
                metavar="NAME=VALUE",
                callback=_parse_conf,
                help="A setting of Spark; repeatable.",
            ),
            click.option(
                "--py-files",
                multiple=True,
                type=click.Path(exists=True, dir_okay=False),
                metavar="FILE",
                callback=_check_py_files,
                help="Python code for executors, from `hastore pipeline package`.",
            ),
        )
    ):
        with_options = option(with_options)
    return with_options


@contextlib.contextmanager
def needs_extra() -> Iterator[None]:
    """Raise ConfigError with the command to install a missing package of the extra ``spark``."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _EXTRA:
            raise
        from hastore.errors import ConfigError
        from hastore.install_source import install_command

        raise ConfigError(
            f"the pipeline needs {missing.name}, which is not installed",
            hint=install_command("spark"),
        ) from missing


def refuse_no_store(stores: Iterable[str]) -> None:
    """Raise NotAStoreError or ConfigError before Spark is started."""
    with needs_extra():
        from hastore.pipeline.source.options import find_stores
    from hastore.env.real import real_env
    from hastore.store.tools.log_directory import find_log

    disk = real_env().disk
    for name in find_stores(stores):
        find_log(disk, name)


def _run_job(
    call: Callable[[SparkSession], JobResult],
    *,
    master: str | None,
    conf: dict[str, str],
    output: str,
) -> None:
    """Start Spark, run a job in it, print its result; exit code 4 if it found something.

    Raises HastoreError, also for errors of Spark and of its tasks.
    """
    with running_spark(master, conf) as spark:
        result = call(spark)
    print_result(result, output)
    if result.found:
        sys.stdout.flush()
        raise Exit(EXIT_FOUND)


@contextlib.contextmanager
def running_spark(
    master: str | None = None, conf: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark for the block, with progress on a terminal.  Raises HastoreError."""
    quiet_logging()
    with ended_by_a_signal() as check, needs_extra(), _progress() as watch:
        from hastore.pipeline.spark.session import spark_session

        check()
        logging.getLogger().addHandler(logging.NullHandler())  # else py4j would set one up
        with spark_session(master, conf or {}) as spark, _own_errors():
            watch(spark)
            yield spark


@contextlib.contextmanager
def ended_by_a_signal() -> Iterator[Callable[[], None]]:
    """End the block by Ctrl-C, SIGTERM or SIGHUP, so that temporary files and Java are removed.

    Each is a KeyboardInterrupt in the block, so that py4j stops waiting for a busy job; after the
    block it is a line and SystemExit.  Yields a check for places where a KeyboardInterrupt may have
    been lost: Python drops one that comes during ``__del__``.
    """
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) != 2:  # a second one would break off the clean-up; a third one may
            raise KeyboardInterrupt

    def check() -> None:
        if received:
            raise KeyboardInterrupt

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(lost)

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) not in {None, signal.SIG_IGN}  # nohup ignores SIGHUP
    ]
    before = {number: signal.signal(number, end) for number in numbers}
    unraisable, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield check
        check()
    except BaseException:  # also errors because the JVM had gone
        if not received:
            raise
    finally:
        sys.unraisablehook = unraisable
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        name = signal.Signals(received[0]).name
        say("interrupted" if name == "SIGINT" else f"ended by {name}")
        raise SystemExit(128 + received[0])


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raise Spark's errors as hastore's, while the session can still be asked for details."""
    try:
        yield
    except Exception as error:
        from hastore.pipeline.spark.errors import is_of_spark, own_error, spark_error

        if not is_of_spark(error):
            raise
        raise (own_error(error) or spark_error(error)) from error


# -- progress --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[SparkSession], None]]:
    """Show Spark's progress in tasks during the block, on a terminal only.

    Yields a function to call with the session.
    """
    if not sys.stderr.isatty():
        yield lambda _spark: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    from hastore_cli.app.progress_bar import bar_on_stderr

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    ended = threading.Event()
    watchers: list[threading.Thread] = []
    with bar_on_stderr(*columns) as progress:
        bar = progress.add_task("starting Spark", total=None, tasks="")

        def watch(spark: SparkSession) -> None:
            watcher = threading.Thread(target=_follow, args=(spark, progress, bar, ended))
            watchers.append(watcher)
            watcher.start()

        try:
            yield watch
        finally:
            ended.set()
            for watcher in watchers:
                watcher.join()


def _follow(spark: SparkSession, progress: Any, bar: Any, ended: threading.Event) -> None:
    """Update the bar as stages begin and tasks end, until the session has gone."""
    with contextlib.suppress(Exception):
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_PROGRESS_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if not known:
                progress.update(bar, description="planning", total=None, tasks="")
                continue
            name = f"stage {max(stage.stageId for stage in known)}"
            total = sum(stage.numTasks for stage in known)
            done = sum(stage.numCompletedTasks for stage in known)
            progress.update(
                bar, description=name, total=total, completed=done, tasks=f"{done}/{total}"
            )


# -- the result ------------------------------------------------------------------------------------


def print_result(result: JobResult, output: str) -> None:
    """Print a job's result."""
    if output == "json":
        document = {
            "schema": SCHEMA,
            "job": result.name,
            "found": result.found,
            "summary": result.summary,
            "columns": list(result.columns),
            "rows": result.rows,
            "files": list(result.files),
        }
        echo_json(document, default=str)
        return
    if result.rows:
        _print_table(result.columns, result.rows)
        tell()
    tables = {name: value for name, value in result.summary.items() if _is_table(value)}
    width = max((len(name) for name in result.summary), default=0)
    for name, value in result.summary.items():
        if name in tables:
            continue
        tell(f"{name.replace('_', ' '):<{width}}  {_summary_text(value)}")
    for name, rows in tables.items():
        tell()
        tell(style(name.replace("_", " "), bold=True))
        _print_table(_used_columns(rows), rows)
    if tables and result.files:
        tell()
    for path in result.files:
        tell(f"{'wrote':<{width}}  {path}")


def _summary_text(value: Any) -> str:
    """Return a number, a text, or counts by name as text."""
    if isinstance(value, dict) and all(isinstance(n, int | float | str) for n in value.values()):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    if value == []:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_table(value: Any) -> bool:
    """Whether a part of a summary is a list of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _used_columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns that are not empty in every row."""
    return [name for name in rows[0] if any(row.get(name) not in {None, 0, ""} for row in rows)]


def _print_table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Print rows; on a narrow terminal the widest text is below its row."""
    from rich.padding import Padding
    from rich.text import Text

    console = make_console()
    widest = _column_below(columns, rows, console.width) if console.is_terminal else None
    if widest is not None:
        with console.capture() as captured:
            console.print(_table([name for name in columns if name != widest], rows))
        head, *lines = captured.get().splitlines()
        if len(lines) == len(rows):  # else a value is still folded
            console.print(Text.from_ansi(head))
            for line, row in zip(lines, rows, strict=True):
                console.print(Text.from_ansi(line))
                if row.get(widest) is not None:
                    console.print(Padding(Text(escaped(str(row[widest]))), (0, 0, 0, 4)))
            return
    console.print(_table(columns, rows))


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        is_number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        values = (row.get(name) for name in columns)
        table.add_row(*("" if value is None else escaped(str(value)) for value in values))
    return table


def _column_below(columns: Sequence[str], rows: Sequence[dict[str, Any]], width: int) -> str | None:
    """Return the widest text column if all columns together are wider than ``width``."""
    widths = {
        name: max(len(name), *(len(str(row.get(name, ""))) for row in rows)) for name in columns
    }
    texts = [name for name in columns if any(isinstance(row.get(name), str) for row in rows)]
    if not texts or sum(widths.values()) + 2 * len(columns) <= width:
        return None
    return max(texts, key=lambda name: widths[name])

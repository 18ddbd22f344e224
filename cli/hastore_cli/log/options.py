"""Shared by commands that read logs: DIR, ``-o``, times, filters, and opening a log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from hastore_cli.app.output import wall_clock_ms
from hastore_cli.app.times import parse_time_ms, parse_window
from hastore_cli.settings.param_types import ParsedType, WholeNumber

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory

DIR: Final = click.Path(exists=True, file_okay=False)
DIR_HELP: Final = "DIR is a store's directory, or the commitlog directory in it."
TIME: Final = ParsedType("TIME", lambda text: parse_time_ms(text, wall_clock_ms()), ())
WINDOW: Final = ParsedType("T1..T2", lambda text: parse_window(text, wall_clock_ms()), ())
TIME_HELP: Final = (
    "Times: 2026-11-21T08:12:22Z, '2026-11-21 08:12' (local), 15min (ago), now, or milliseconds"
    " since 1970."
)


def unconfirmed_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--unconfirmed``."""
    return click.option(
        "--unconfirmed",
        is_flag=True,
        help="Also what looks like messages behind damage; a producer may have planted them.",
    )(command)


def open_log(path: str) -> tuple[Disk, LogDirectory]:
    """Return the disk and the log in a directory.  Raises NotAStoreError if there is none."""
    from hastore.env.real import RealDisk
    from hastore.store.tools.log_directory import find_log

    disk = RealDisk()
    return disk, find_log(disk, path)


def quiet_logging() -> None:
    """Log errors only: a command reports its findings itself."""
    from hastore_cli.app.log_output import LogConfig, set_up_logging

    set_up_logging(LogConfig(format="console", level="error"), colour=False)


def parse_body_pattern(text: str | None, regex: str | None) -> re.Pattern[bytes] | None:
    """Return the pattern of ``--body TEXT`` or ``--regex RE``.  Raises UsageError."""
    if text is not None and regex is not None:
        raise click.UsageError("--body and --regex exclude each other")
    if text is not None:
        return re.compile(re.escape(text.encode(errors="surrogateescape")))
    if regex is None:
        return None
    try:
        return re.compile(regex.encode(errors="surrogateescape"))
    except re.error as error:
        raise click.BadParameter(f"{regex!r}: {error}", param_hint="'--regex'") from None


def parse_properties(
    _ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Parse ``NAME=VALUE`` pairs."""
    pairs: list[tuple[str, str]] = []
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param=param)
        pairs.append((name, value))
    return tuple(pairs)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter messages."""
    for option in reversed(
        (
            click.option("-t", "--topic", metavar="TOPIC", help="Only this topic."),
            click.option(
                "-q", "--queue", type=WholeNumber(min=0), metavar="QUEUE", help="Only this queue."
            ),
            click.option("-k", "--key", help="With this key, or this UNIQ_KEY."),
            click.option("--tag", help="With this tag."),
            click.option(
                "-p",
                "--property",
                "properties",
                multiple=True,
                metavar="NAME=VALUE",
                callback=parse_properties,
                help="With this property; repeatable.",
            ),
            click.option("--body", metavar="TEXT", help="TEXT is somewhere in the body."),
            click.option(
                "--regex", metavar="RE", help="RE is found in the body (Python's syntax)."
            ),
        )
    ):
        command = option(command)
    return command

"""A bar for reading many bytes: on stderr, on a terminal only, gone when it is done."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from cli.terminal import make_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def reading_bar(what: str, size: int) -> Iterator[Callable[[int], None] | None]:
    """Give what to call with the bytes of each read; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(
        *columns, console=make_console(stderr=True), transient=True, refresh_per_second=4
    ) as progress:
        task = progress.add_task(what, total=size or None)
        yield lambda read: progress.advance(task, read)

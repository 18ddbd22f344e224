"""A bar for reading many bytes or messages: on stderr, on a terminal only, gone when it is done.

Every bar is made by ``bar_on_stderr``, so that none draws stdout's lines to stderr.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, final

from hastore_cli.app.terminal import make_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, ProgressColumn


def bar_on_stderr(*columns: ProgressColumn, **options: Any) -> Progress:
    """Make a bar that goes when it is done; ``options`` are those of rich's Progress.

    Left to itself rich prints what comes to stdout above the bar, on stderr then.  That is right
    where both are the terminal; a pipe or a file gets its lines itself.
    """
    from rich.progress import Progress

    return Progress(
        *columns,
        console=make_console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        **options,
    )


@final
class ReadingBar:
    """A bar for the length of a ``with`` block, or until ``stop``.

    ``on_progress`` is to be called with the bytes of each read; None where nobody watches.
    """

    def __init__(self, what: str, size: int, *, counts: bool = False) -> None:
        self.on_progress: Callable[[int], None] | None = None
        self._counts = counts  # of messages, not bytes
        self._what = what
        self._size = size
        self._progress: Progress | None = None

    def __enter__(self) -> ReadingBar:
        if sys.stderr.isatty():
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TaskProgressColumn,
            TextColumn,
            TransferSpeedColumn,
        )

        units = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            *([MofNCompleteColumn()] if self._counts else units),
        )
        progress = bar_on_stderr(*columns, refresh_per_second=4)
        task = progress.add_task(self._what, total=self._size or None)
        progress.start()
        self._progress = progress
        self.on_progress = lambda read: progress.advance(task, read)

    def stop(self) -> None:
        """Take the bar away: lines that come now would be torn to pieces by it."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


@contextlib.contextmanager
def reading_bar(what: str, size: int) -> Iterator[Callable[[int], None] | None]:
    """Return what to call with the bytes of each read; None where nobody watches."""
    with ReadingBar(what, size) as bar:
        yield bar.on_progress

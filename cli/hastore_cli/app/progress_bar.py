"""A progress bar for many bytes or messages: on a terminal's stderr, removed when it is done."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, final

from hastore_cli.app.terminal import make_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, ProgressColumn


def bar_on_stderr(*columns: ProgressColumn, **options: Any) -> Progress:
    """Return a bar that removes itself; ``options`` are those of rich's Progress.

    By default rich prints stdout's lines above the bar, to stderr.  That is right only where both
    are the terminal: a pipe or a file must get its lines.
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

    Call ``on_progress`` with the bytes of each read; it is None off a terminal.
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
        """Remove the bar, which would tear lines that are printed now."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


@contextlib.contextmanager
def reading_bar(what: str, size: int) -> Iterator[Callable[[int], None] | None]:
    """Yield a function to call with the bytes of each read; None off a terminal."""
    with ReadingBar(what, size) as bar:
        yield bar.on_progress

"""The demo's working directory and its report folder.

::

    --keep DIR   DIR/  D1/ D2/ D3/  lines.txt  history.jsonl  report.html …   all of it stays
    otherwise    a temporary directory, removed at the end, and
                 hastore-runs/demo-TIME/  report.html  history.jsonl  result.json

Two demos never share a directory.  An interrupted demo leaves neither of them; a failed one keeps
its directory.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, final

import attrs

from hastore.errors import ConfigError
from hastore.testing.leftovers import remove_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS_DIRECTORY: Final = "hastore-runs"
# Three nodes of four files of 64 MiB, and the next of each; three nodes of one in the second act.
FREE_MIN: Final = 2_000 * 2**20


@final
@attrs.define(eq=False)
class DemoPlace:
    """``directory`` holds the nodes and stays if ``keeps``; ``folder`` holds the report."""

    directory: Path
    folder: Path
    keeps: bool

    @classmethod
    @contextlib.contextmanager
    def open(cls, keep: str | None) -> Iterator[Self]:
        """Make both; at the end of the block, remove the directory unless ``keeps``.

        Raises ConfigError if a directory cannot be used.
        """
        with contextlib.ExitStack() as made:
            try:
                place = cls._of_user(keep) if keep is not None else cls._own(made)
            except OSError as error:
                raise ConfigError(
                    f"cannot make {error.filename}: {error.strerror}",
                    hint="name a directory of yours: make demo KEEP=DIR",
                ) from error
            made.callback(place.remove)
            _check_room(place.directory)
            yield place

    @classmethod
    def _of_user(cls, keep: str) -> Self:
        directory = Path(keep).expanduser().resolve()
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigError(
                f"{keep} is not empty", hint="a demo begins in an empty directory: name another"
            )
        return cls(directory, directory, keeps=True)

    @classmethod
    def _own(cls, made: contextlib.ExitStack) -> Self:
        runs = Path(RUNS_DIRECTORY).resolve()
        runs.mkdir(exist_ok=True)
        made.callback(_remove_if_empty, runs)
        folder = _fresh(runs / datetime.now().astimezone().strftime("demo-%Y%m%d-%H%M%S"))
        made.callback(_remove_if_empty, folder)
        directory = Path(tempfile.mkdtemp(prefix="hastore-demo-")).resolve()
        return cls(directory, folder, keeps=False)

    def remove(self) -> None:
        """Remove the directory unless ``keeps``."""
        if not self.keeps:
            remove_directory(self.directory)


def _check_room(directory: Path) -> None:
    """Raise ConfigError if the disk has too little room."""
    free = shutil.disk_usage(directory).free
    if free < FREE_MIN:
        raise ConfigError(
            f"{directory} has {free >> 20} MiB free, the demo needs {FREE_MIN >> 20} MiB",
            hint="use another disk: make demo KEEP=DIR, or TMPDIR=DIR in the environment",
        )


def _fresh(folder: Path) -> Path:
    """Make and return a new folder: another demo may begin in the same second."""
    number = 1
    path = folder
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            path = folder.with_name(f"{folder.name}.{number}")
        else:
            return path


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()

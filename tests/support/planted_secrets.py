"""Secrets that tests plant, and the search for them in what hastore writes.

Every secret of a test contains ``PLANTED``.  A file that is meant to have one is written by
``plant``; found anywhere else, it is a leak.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLANTED = "planted-secret"

FILE_SIZE_MAX = 4 * 1024 * 1024
# Formats whose bytes come from clients, and which may be large.
STORES = frozenset({"commitlog", "consumequeue", "index"})

_planted: set[tuple[int, int]] = set()  # device and inode: files are renamed


class LeakedSecretError(AssertionError):
    """A secret where others may read it."""


def plant(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that is meant to have a secret; in one step, as its readers ask for."""
    new = path.with_name(f".{path.name}.new")
    new.touch(mode)
    new.chmod(mode)
    new.write_text(text)
    status = new.stat()
    _planted.add((status.st_dev, status.st_ino))
    new.rename(path)


def check_text(text: bytes | str | None, where: str) -> None:
    """Raise LeakedSecretError if a text has a secret."""
    if text and (PLANTED.encode() in text if isinstance(text, bytes) else PLANTED in text):
        raise LeakedSecretError(f"a secret of the test is in {where}")


def check_files(directory: Path) -> None:
    """Raise LeakedSecretError if a file below has a secret, and is not meant to."""
    planted = _planted.copy()
    _planted.clear()
    for entry in _files_below(str(directory)):
        status = entry.stat(follow_symlinks=False)
        if status.st_size > FILE_SIZE_MAX or (status.st_dev, status.st_ino) in planted:
            continue
        try:
            with open(entry.path, "rb") as file:  # noqa: PTH123 - thousands of files
                data = file.read()
        except OSError:
            continue  # it has gone, or is a test's own obstacle
        check_text(data, entry.path)


def _files_below(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in STORES:
                yield from _files_below(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry

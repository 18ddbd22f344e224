"""What takes a file or directory away from under a running node."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

WAYS = ("removed", "renamed", "replaced", "mounted over")


@contextlib.contextmanager
def lost(path: Path, way: str) -> Iterator[None]:
    """Take ``path`` away, in one of ``WAYS``; a mount ends with the block.

    Mounting needs root; without it the test is skipped, and says which command failed.
    """
    aside = path.with_name(f"{path.name}.aside")
    match way:
        case "removed":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "renamed":
            path.rename(aside)
        case "replaced":
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, aside)
            path.rename(path.with_name(f"{path.name}.original"))
            aside.rename(path)
        case _:
            other = None
            if not path.is_dir():
                other = path.with_name(f"{path.name}.other")
                shutil.copyfile(path, other)
            with mounted_over(path, other):
                yield
            return
    yield


@contextlib.contextmanager
def mounted_over(path: Path, other: Path | None) -> Iterator[None]:
    """Mount ``other`` over ``path`` until the block ends; None: an empty tmpfs."""
    command = ["mount", "-t", "tmpfs", "tmpfs", str(path)]
    if other is not None:
        command = ["mount", "--bind", str(other), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {' '.join(command)}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)

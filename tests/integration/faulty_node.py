"""A node whose system calls on some files fail: ``python -m tests.integration.faulty_node``.

The calls of ``os`` that the real disk makes are replaced in this process.  While the control file
exists, a call on a file that matches the fault's pattern raises the fault's error; the test writes
the control file, and removes it to end the fault::

    {"calls": ["fdatasync"], "pattern": "*/commitlog/*", "errno": 5, "hit": "PATH", "once": false}

A failed call creates ``hit``, so a fault that never happened is noticed.
"""

from __future__ import annotations

import errno as errors
import fnmatch
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

CALLS = (
    "fdatasync", "fsync", "pread", "preadv", "pwrite", "posix_fallocate", "sendfile", "open",
    "replace",
)  # fmt: skip


@attrs.frozen
class FaultControl:
    """The test's side: one fault at a time."""

    path: Path

    @property
    def hit_path(self) -> Path:
        """The file that a failed call creates."""
        return self.path.with_suffix(".hit")

    @property
    def was_hit(self) -> bool:
        """Whether a call has failed since ``set``."""
        return self.hit_path.exists()

    def set(self, calls: str, pattern: str, error: int = errors.EIO, *, once: bool = False) -> None:
        """Make these calls fail from now on; ``once``: only the next one."""
        assert set(calls.split()) <= set(CALLS)
        self.hit_path.unlink(missing_ok=True)
        fault = {"calls": calls.split(), "pattern": pattern, "errno": error, "once": once}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps({**fault, "hit": str(self.hit_path)}), encoding="utf-8")
        beside.replace(self.path)

    def heal(self) -> None:
        """End the fault."""
        self.path.unlink(missing_ok=True)

    def command(self, arguments: tuple[str, ...]) -> list[str]:
        """Return the command line of ``hastore ARGUMENTS`` under this control."""
        return [sys.executable, "-m", "tests.integration.faulty_node", str(self.path), *arguments]


def wrap(control: Path, call: str) -> None:
    """Replace one function of ``os``."""
    original: Callable[..., Any] = getattr(os, call)
    real_open, exists = open, os.path.exists
    place = 1 if call == "sendfile" else 0  # which argument is the file

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not exists(control):
            return original(*args, **kwargs)
        with real_open(control, encoding="utf-8") as file:
            fault = json.load(file)
        target = args[place]
        if isinstance(target, int):
            target = Path(f"/proc/self/fd/{target}").readlink()
        path = str(target)
        if call not in fault["calls"] or not fnmatch.fnmatch(path, fault["pattern"]):
            return original(*args, **kwargs)
        Path(fault["hit"]).touch()
        if fault["once"]:
            control.unlink()
        raise OSError(fault["errno"], os.strerror(fault["errno"]), path)

    setattr(os, call, wrapper)


def main() -> int:
    """Run the node of the command line."""
    for call in CALLS:
        wrap(Path(sys.argv[1]), call)
    from hastore.env.real import RealDiskFile
    from hastore_cli.main import main as run_cli

    RealDiskFile.sync_descriptor = lambda _: None  # type: ignore[method-assign] # not in C
    sys.argv = ["hastore", *sys.argv[2:]]
    return run_cli()


if __name__ == "__main__":
    sys.exit(main())

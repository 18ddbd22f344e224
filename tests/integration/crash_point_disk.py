"""A node that kills itself at a named point: ``python -m tests.integration.crash_point_disk``.

::

    test ── starts ──► this module ── wraps ──► methods of hastore's real disk and of CommitLog
      ▲                    │                        │ the n-th call that matches
      └── file `hit` ◄─────┴──── SIGKILL ◄──────────┘

The product has no code for this: the methods of ``hastore.env.real`` and of ``CommitLog`` are
replaced in this process before the node is built.  A point is a method, a pattern for its path,
when (before, after, or in the middle), and the number of the matching call.

In the middle means: half of the bytes of a ``pwrite`` or of an appended record, half of a file's
blocks, a replacement written beside and not yet renamed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

BEFORE, MIDDLE, AFTER = "before", "middle", "after"


@attrs.frozen
class CrashPoint:
    """Where to die: at the ``number``-th call of ``method`` on a path that matches ``pattern``."""

    method: str
    pattern: str
    when: str
    number: int = 1
    expires: bool = False  # log files expire all the time, as if the disk were 87 % full

    def __str__(self) -> str:
        return f"{self.when} {self.method} {self.pattern} #{self.number}"


def crash_command(point: CrashPoint, hit_path: Path, arguments: tuple[str, ...]) -> list[str]:
    """Return the command line of a node that writes ``hit_path`` and dies at ``point``."""
    encoded = json.dumps([*attrs.astuple(point), str(hit_path)])
    return [sys.executable, "-m", "tests.integration.crash_point_disk", encoded, *arguments]


class Crash:
    """Counts the matching calls, and ends the process at the chosen one."""

    def __init__(self, point: CrashPoint, hit_path: str) -> None:
        self.point = point
        self._hit_path = hit_path
        self._matched = 0

    def is_here(self, method: str, path: str) -> bool:
        """Count a call; return whether it is the chosen one."""
        if method != self.point.method or not fnmatch.fnmatch(path, self.point.pattern):
            return False
        self._matched += 1
        return self._matched == self.point.number

    def wrap(
        self,
        owner: type,
        name: str,
        path_of: Callable[..., str],
        middle: Callable[..., None] | None = None,
    ) -> None:
        """Replace a method by one that may die; ``middle`` does half of its work."""
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.is_here(name, path_of(*args, **kwargs)):
                return original(*args, **kwargs)
            if self.point.when == MIDDLE:
                assert middle is not None, f"{name} has no middle"
                middle(*args, **kwargs)
            if self.point.when == AFTER:
                original(*args, **kwargs)
            return self.die()

        setattr(owner, name, wrapper)

    def die(self) -> None:
        """Record that the point was reached, and end by SIGKILL."""
        Path(self._hit_path).write_text(str(self.point), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)  # in a thread the signal may need a moment to arrive


def wrap_disk(crash: Crash) -> None:
    """Wrap the methods of the disk."""
    from hastore.env.real import RealDisk, RealDiskFile

    def own_path(file: Any, *_args: Any) -> str:
        return str(file.path)

    def first_path(_disk: Any, path: str, *_args: Any, **_kwargs: Any) -> str:
        return path

    def half_pwrite(file: Any, data: bytes | memoryview, position: int) -> None:
        os.pwrite(file.fileno(), data[: max(len(data) // 2, 1)], position)

    def half_create(_disk: Any, path: str, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.posix_fallocate(descriptor, 0, size // 2)

    def half_write_file(_disk: Any, path: str, data: bytes) -> None:
        Path(f"{path}.tmp").write_bytes(data)

    crash.wrap(RealDiskFile, "pwrite", own_path, half_pwrite)
    crash.wrap(RealDiskFile, "sync", own_path)
    RealDiskFile.sync_descriptor = lambda _: None  # type: ignore[method-assign] # not in C
    crash.wrap(RealDisk, "create_file", first_path, half_create)
    crash.wrap(RealDisk, "write_file", first_path, half_write_file)
    for name in ("open_sparse_file", "remove", "rename", "sync_dir", "make_dirs"):
        crash.wrap(RealDisk, name, first_path)


def wrap_log(crash: Crash) -> None:
    """Wrap the methods of the log."""
    from hastore.store.commit_log import CommitLog
    from hastore.store.log_tail import LogTail

    def log_path(log: Any, *_args: Any, **_kwargs: Any) -> str:
        return str(log.path)

    append = CommitLog.append_message

    def half_append(log: Any, message: Any) -> None:
        begin = log._position
        append(log, message)
        end = log._position
        if end < begin:  # it is the next file's first record
            begin = 0
        if end > begin:  # unless it found no room
            half = begin + (end - begin) // 2
            log._view[half:end] = bytes(end - half)

    crash.wrap(CommitLog, "append_message", log_path, half_append)
    crash.wrap(LogTail, "_roll", log_path)


def let_expire() -> None:
    """Start the expiry at once, with a disk that seems too full to keep anything."""
    from hastore.broker.expiry import clean_consume_queue_service
    from hastore.broker.expiry.clean_commit_log_service import CleanCommitLogService
    from hastore.env.interface import DiskSpace
    from hastore.env.real import RealDisk

    read_limits = CleanCommitLogService.__attrs_post_init__

    def begin_at_once(service: CleanCommitLogService) -> None:
        read_limits(service)
        service.first_run_s = 0.0

    CleanCommitLogService.__attrs_post_init__ = begin_at_once
    clean_consume_queue_service.FIRST_RUN_S = 0.0
    RealDisk.space = lambda _disk, _path: DiskSpace(device=0, used_ratio=0.87, free_bytes=1 << 30)


def main() -> int:
    """Run the node of the command line until the point is reached."""
    *fields, hit_path = json.loads(sys.argv[1])
    crash = Crash(CrashPoint(*fields), hit_path)
    if crash.point.expires:
        let_expire()
    wrap_disk(crash)
    wrap_log(crash)
    from hastore_cli.main import main as run_cli

    sys.argv = ["hastore", *sys.argv[2:]]
    return run_cli()


if __name__ == "__main__":
    sys.exit(main())

"""A node whose disk can be made to fail.

    python -m hastore_scenarios.worlds.process.faulty_node CONTROL ARGUMENTS

The functions of ``os`` that the real disk calls are replaced in this process, and work as always
until the control file says otherwise::

    {"full": true, "slow_s": 0.3, "fail_sync": true}

``full``: no file is created or grows, allocated bytes can be written, as on a real full disk.
``slow_s``: each sync takes longer.  ``fail_sync``: the next sync of the log fails with EIO, once.
``dies_before``, if it is there at the start: SIGKILL before that step of a cut of the log in
``data_dir``.
This works on every machine, without root.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.env import real
from hastore.env.real import RealDiskFile
from hastore_scenarios.story.world import CutStep
from hastore_scenarios.worlds.cut_watch import WatchedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG_DIR: Final = "/commitlog/"


@final
@attrs.define(eq=False)
class NodeFaults:
    """The control file, as the world writes it."""

    path: Path
    _faults: dict[str, object] = attrs.field(factory=dict, init=False)

    def set(self, **faults: object) -> None:
        """Add faults to the current ones."""
        self._faults.update(faults)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self._faults), encoding="utf-8")
        new.replace(self.path)

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()
        self.path.unlink(missing_ok=True)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line of ``hastore ARGUMENTS`` under this control file."""
        return [
            sys.executable,
            "-m",
            "hastore_scenarios.worlds.process.faulty_node",
            str(self.path),
            *arguments,
        ]


def _read(control: Path) -> dict[str, Any]:
    try:
        faults: dict[str, Any] = json.loads(control.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return faults


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _failing(control: Path, call: str) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(os, call)

    def wrapper(descriptor: int, *args: Any) -> Any:
        faults = _read(control)
        if faults:
            if call in {"fdatasync", "fsync"}:
                _sync(control, faults, descriptor)
            elif faults.get("full") and (
                call == "posix_fallocate" or _LOG_DIR not in _path_of(descriptor)
            ):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, *args)

    return wrapper


def _sync(control: Path, faults: dict[str, Any], descriptor: int) -> None:
    """Wait before a sync, or raise OSError in its place."""
    time.sleep(faults.get("slow_s", 0.0))
    if faults.get("fail_sync") and _LOG_DIR in _path_of(descriptor):
        control.unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def _watch_cuts(step: CutStep, data_dir: str) -> None:
    """Let this process die before a step of a cut."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    make = real.RealDisk
    watched: Any = lambda: WatchedDisk(make(), data_dir, step, die)  # noqa: E731
    real.RealDisk = watched  # type: ignore[misc] # real_env() makes one


def main() -> None:
    """Run the node of the command line."""
    control = Path(sys.argv[1])
    faults = _read(control)
    if "dies_before" in faults:
        _watch_cuts(CutStep(faults["dies_before"]), faults["data_dir"])
    for call in ("fdatasync", "fsync", "posix_fallocate", "pwrite"):
        setattr(os, call, _failing(control, call))
    RealDiskFile.sync_descriptor = lambda _: None  # type: ignore[method-assign,assignment] # not in C
    sys.argv = ["hastore", *sys.argv[2:]]
    runpy.run_module("hastore_cli", run_name="__main__")


if __name__ == "__main__":
    main()

"""A node whose disk can be made to fail.

    python -m hastore_scenarios.worlds.process.faulty_node CONTROL ARGUMENTS

The calls of ``os`` that the real disk makes are replaced in this process, and do what they always
do until the control file says otherwise::

    {"full": true, "slow_s": 0.3, "fail_sync": true}

``full``: nothing is created or grows, what is allocated can be written, as on a real full disk.
``slow_s``: each sync takes longer.  ``fail_sync``: the next sync of the log is EIO, once.  It needs
neither root nor a kernel that helps, so it is there on every machine.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG_DIR: Final = "/commitlog/"


@final
@attrs.define(eq=False)
class NodeFaults:
    """The world's end: what the control file says."""

    path: Path
    told: dict[str, object] = attrs.field(factory=dict)

    def set(self, **faults: object) -> None:
        """Let these be so from now on, beside those that are."""
        self.told.update(faults)
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(self.told), encoding="utf-8")
        beside.replace(self.path)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self.told.clear()
        self.path.unlink(missing_ok=True)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line of ``hastore ARGUMENTS`` under this control."""
        return [
            sys.executable,
            "-m",
            "hastore_scenarios.worlds.process.faulty_node",
            str(self.path),
            *arguments,
        ]


def _read(control: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(control.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return told


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _failing(control: Path, call: str) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(os, call)

    def wrapper(descriptor: int, *args: Any) -> Any:
        told = _read(control)
        if told:
            if call in {"fdatasync", "fsync"}:
                _sync(control, told, descriptor)
            elif told.get("full") and (
                call == "posix_fallocate" or _LOG_DIR not in _path_of(descriptor)
            ):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, *args)

    return wrapper


def _sync(control: Path, told: dict[str, Any], descriptor: int) -> None:
    """Let a sync be slow, or fail."""
    time.sleep(told.get("slow_s", 0.0))
    if told.get("fail_sync") and _LOG_DIR in _path_of(descriptor):
        control.unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def main() -> None:
    """Run the node of the command line."""
    control = Path(sys.argv[1])
    for call in ("fdatasync", "fsync", "posix_fallocate", "pwrite"):
        setattr(os, call, _failing(control, call))
    sys.argv = ["hastore", *sys.argv[2:]]
    runpy.run_module("hastore_cli", run_name="__main__")


if __name__ == "__main__":
    main()

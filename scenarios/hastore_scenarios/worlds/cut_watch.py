"""Watches the changes that a cut of a log makes on a disk, to kill its node before one of them.

Each step of a cut (``hastore.store.recovery.cut``) changes files of its own, so the path tells the
step.  The same files are changed at other times, too: steps after the intent count only while
``cut.json`` is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.store.epoch_file import EPOCH_FILE
from hastore.store.log.store_directory import CUT_FILE, TRIMMED_DIR
from hastore_scenarios.story.world import CutStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk, DiskFile

_CHANGES: Final = frozenset(
    {"create_file", "make_dirs", "remove", "remove_tree", "rename", "sync_dir", "write_file"}
)
_OPENS: Final = frozenset({"create_file", "open_file", "open_sparse_file"})
_FILE_CHANGES: Final = frozenset({"pwrite", "sync"})
_STEPS: Final = {
    TRIMMED_DIR: CutStep.COPY,
    "checkpoint": CutStep.CHECKPOINT,
    "commitlog": CutStep.LOG,
    "consumequeue": CutStep.QUEUES,
    "index": CutStep.INDEX,
    EPOCH_FILE: CutStep.EPOCHS,
}


def step_of(name: str, path: str) -> CutStep | None:
    """Return the step to which a change belongs; ``path`` is relative to the node's directory."""
    if path == CUT_FILE:
        return CutStep.FINISH if name == "remove" else CutStep.INTENT
    if path.startswith(f"{TRIMMED_DIR}/cut-"):
        return CutStep.DESCRIPTION
    return _STEPS.get(path.partition("/")[0])


@final
@attrs.define(eq=False)
class WatchedDisk:
    """Another disk, which calls ``die`` before the first change of a step of a cut."""

    disk: Disk
    data_dir: str
    step: CutStep
    die: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.disk, name)
        if name not in _CHANGES and name not in _OPENS:
            return method

        def call(path: str, *args: Any, **options: Any) -> Any:
            if name in _CHANGES:
                self.changes(name, path)
            done = method(path, *args, **options)
            return _WatchedFile(done, self) if name in _OPENS else done

        return call

    def changes(self, name: str, path: str) -> None:
        """Die if a change is of the step."""
        if step_of(name, path.removeprefix(f"{self.data_dir}/")) is self.step and (
            self.step in {CutStep.COPY, CutStep.DESCRIPTION, CutStep.INTENT}
            or self.disk.exists(f"{self.data_dir}/{CUT_FILE}")
        ):
            self.die()


@final
@attrs.define(eq=False)
class _WatchedFile:
    """An open file of a ``WatchedDisk``."""

    file: DiskFile
    disk: WatchedDisk

    def __getattr__(self, name: str) -> Any:
        if name in _FILE_CHANGES:
            self.disk.changes(name, self.file.path)
        return getattr(self.file, name)

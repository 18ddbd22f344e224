"""Cuts stores on the real disk in processes that are killed; a program of its own, which forks.

``python -m tests.support.store.killed_cuts DIR OFFSET SEED TIMES``: DIR/store is the store.  It is
copied and cut once uninterrupted, then with a kill before each change of the disk, then TIMES times
with a kill at a random instant, each time finished by ``complete_cut``.  Prints one JSON object:
how many processes were killed, and the changes after which a copy ended differently.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import attrs

from hastore.env.real import RealDisk, real_env
from hastore.store.recovery.cut import complete_cut, cut_store
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.store_lock import StoreLock
from tests.support.env.scripted_disk import Operation, ScriptedDisk
from tests.support.store.message_store_model import CONFIG


@attrs.define(eq=False)
class KillingDisk(ScriptedDisk):
    """Kills this process before change ``dies_at``; None: never."""

    dies_at: int | None = None
    changes_seen: int = 0

    def check(self, operation: Operation) -> None:
        """Count changes."""
        if operation.is_change:
            if self.changes_seen == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.changes_seen += 1


def contents(store: Path) -> dict[str, bytes]:
    """Return all bytes that a cut decides, and the checkpoint's numbers."""
    found = {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file()
        and path.relative_to(store).parts[0] not in {"trimmed", "lock", "checkpoint"}
        and path.suffix != ".tmp"
    }
    checkpoint = StoreCheckpoint.open(RealDisk(), str(store))
    found["checkpoint"] = f"{checkpoint.flushed_offset} {checkpoint.min_timestamp}".encode()
    return found


def cut(store: Path, offset: int, dies_at: int | None = None) -> None:
    """Cut a store, or finish a cut, and then cut it at the offset: a call that may be repeated."""
    disk = KillingDisk(RealDisk(), dies_at=dies_at)
    env = attrs.evolve(real_env(), disk=disk)
    lock = StoreLock.take(disk, str(store))
    cut_store(env, CONFIG, lock, offset, reason="a test")
    lock.release(clean=False)


def in_child(store: Path, offset: int, *, dies_at: int | None, after_s: float | None) -> bool:
    """Cut in a process of its own; return whether it was killed."""
    pid = os.fork()
    if not pid:
        if after_s is not None:
            signal.setitimer(signal.ITIMER_REAL, after_s)  # SIGALRM ends it like a kill
        cut(store, offset, dies_at)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status)
    return os.WIFSIGNALED(status)


def main() -> None:
    """Run as the module's docstring says."""
    root, offset, seed, times = Path(sys.argv[1]), *map(int, sys.argv[2:])
    before = contents(root / "store")
    copy = root / "copy"

    def fresh() -> Path:
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(root / "store", copy)

    started = time.perf_counter()
    cut(fresh(), offset)
    duration_s = time.perf_counter() - started
    wanted = contents(copy)
    wrong, killed, finished = [], 0, 0

    def end(what: str) -> None:
        nonlocal finished
        lock = StoreLock.take(RealDisk(), str(copy))
        done = complete_cut(real_env(), lock)
        lock.release(clean=False)
        finished += done is not None
        found = contents(copy)
        if found != wanted and (done is not None or found != before):
            wrong.append(what)

    number = 0
    while in_child(fresh(), offset, dies_at=number, after_s=None):
        killed += 1
        end(f"change {number}")
        number += 1
    rng = random.Random(seed)
    for _ in range(times):
        after_s = max(rng.random() * 1.5 * duration_s, 1e-6)
        killed += in_child(fresh(), offset, dies_at=None, after_s=after_s)
        end(f"{after_s} s")
    print(json.dumps({"changes": number, "killed": killed, "finished": finished, "wrong": wrong}))


if __name__ == "__main__":
    main()

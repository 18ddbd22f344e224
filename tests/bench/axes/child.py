"""A process that answers each line of JSON on its input with one on its output.

::

    parent: Child(module, options)  ──►  child: serve(act)
            ask(seconds=0.5)  ── {"seconds": 0.5} ──►  act  ── {"rate": …} ──►

The child's first line is its greeting.  ``serve`` itself handles the command ``unmap``, whose value
is a path.  The child ends when its input does, so it never outlives its parent.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from hastore.native.in_use import PURE_VARIABLE
from hastore_scenarios.worlds.process.child_process import child_environment

ANSWER_WITHIN_S = 60.0
Answer = dict[str, Any]


class Child:
    """A running child; leave its ``with`` block to end it."""

    def __init__(self, module: str, *, is_pure: bool = False, **options: object) -> None:
        pure = {PURE_VARIABLE: "1"} if is_pure else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**child_environment(), **pure},
        )
        try:
            self.greeting = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def ask(self, **command: object) -> Answer:
        """Send a command and wait for its answer.  Raises RuntimeError if none comes."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Answer:
        output = self.process.stdout
        assert output is not None
        if not select.select([output], [], [], ANSWER_WITHIN_S)[0]:
            raise RuntimeError(f"{self.process.args!r} did not answer in {ANSWER_WITHIN_S:g} s")
        line = output.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End it: close its input, wait, and kill it if that does not help."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.process.stdin, self.process.stdout:
            pass
        try:
            self.process.wait(ANSWER_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def options() -> Any:
    """Return the options that the parent gave, in the child."""
    return json.loads(sys.argv[1])


async def serve(greeting: Answer, act: Callable[..., Awaitable[Answer]]) -> None:
    """Greet, then answer each command until the input ends."""
    print(json.dumps(greeting), flush=True)
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        command = json.loads(line)
        if "unmap" in command:
            answer = {"unmapped": unmap_files(command["unmap"])}
        else:
            answer = await act(**command)
        print(json.dumps(answer), flush=True)


def unmap_files(below: str) -> int:
    """Take the pages of the files below a path out of this process' maps; return of how many maps.

    While they are there, the kernel keeps them in its cache.
    """
    count = 0
    below = os.path.realpath(below)
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, path = line.partition(" ")
        if f" {below}/" in path:
            start, end = (int(each, 16) for each in addresses.split("-"))
            address, size = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
            if libc.madvise(address, size, mmap.MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            count += 1
    return count


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process with all its threads, as clock_getcpuclockid(3) does."""
    return time.clock_gettime(~pid << 3 | 2)


def uses_extension(pid: int) -> bool:
    """Whether a process has loaded the C extension."""
    return "/_native." in Path(f"/proc/{pid}/maps").read_text()


def settle(pids: list[int], within_s: float = 10.0) -> None:
    """Wait until some processes have nothing to do: dispatch and flush follow the last put."""
    end = time.monotonic() + within_s
    before = [cpu_s(pid) for pid in pids]
    while time.monotonic() < end:
        time.sleep(0.05)
        after = [cpu_s(pid) for pid in pids]
        if all(b - a < 0.002 for a, b in zip(before, after, strict=True)):
            break
        before = after
    os.sync()  # no write-back of this round during the next one

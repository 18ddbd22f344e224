"""``hastore`` that also writes how long the steps of its event loop were: for ``siege``.

::

    HASTORE_STEPS_FILE=FILE python -m tests.hostile.timed_node master --data DIR …

A line for each step of a task that took more than ``LONG_MS`` of processor time: when it ended
(seconds, ``time.monotonic``), how long it took (ms), the task.  Time in which other processes had
the processor does not count.
"""

import functools
import os
import sys
import time
from pathlib import Path

import trio

from hastore_cli.main import main

LONG_MS = 1.0
FILE = "HASTORE_STEPS_FILE"


class Steps(trio.abc.Instrument):
    """Writes long steps to a file."""

    def __init__(self, path):
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - as long as the process
        self._begun = 0.0

    def before_task_step(self, task):
        """Begin to count."""
        self._begun = time.thread_time()

    def after_task_step(self, task):
        """Write the step if it was long."""
        took_ms = (time.thread_time() - self._begun) * 1000
        if took_ms > LONG_MS:
            self._file.write(f"{time.monotonic():.6f} {took_ms:.3f} {task.name}\n")


if __name__ == "__main__":
    trio.run = functools.partial(trio.run, instruments=[Steps(os.environ.pop(FILE))])
    sys.exit(main())

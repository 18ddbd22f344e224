"""What a node's process asks of its system: open files, and memory that goes back.

A node keeps every file of its log open, and a connection to each producer and slave.  Where all the
connections that it may have would leave none for the log, strangers could make it refuse puts.

glibc takes blocks of 128 KiB and more from the system one by one, and returns them so; but each one
that is freed raises that threshold, up to 32 MiB, and what is below it comes from a heap that has
holes and does not shrink.  A node that has held many large requests or answers at once would keep
up to twice their size for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from typing import TYPE_CHECKING, Final

from hastore.config import MasterConfig
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import SlaveConfig

_M_MMAP_THRESHOLD: Final = -3  # mallopt(3)
LARGE_SIZE: Final = 512 * 1024
FILES_OF_A_STORE: Final = 256  # log, consume queues, index, and what is opened for a moment

_log = logger("cli")


def raise_file_limit(config: MasterConfig | SlaveConfig) -> None:
    """Raise the soft limit of open files to the hard one, where the system lets us.

    Says so where even that is less than the node's connections and a small store take.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.remoting.connections_max + FILES_OF_A_STORE
    if isinstance(config, MasterConfig):
        wanted += config.ha.ha_connections_max
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _log.warning(
            "few_open_files",
            limit=soft,
            wanted=wanted,
            next="raise it (ulimit -n), or lower [remoting] connections_max",
        )


# -- memory --------------------------------------------------------------------------------------


def return_large_buffers() -> None:
    """Fix the threshold, where the C library has one."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_SIZE)

"""How many files this process may have open: as many as it may ask for.

A node keeps every file of its log open, and a connection to each producer and slave.  Where all the
connections that it may have would leave none for the log, strangers could make it refuse puts.
"""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING, Final

from hastore.config import MasterConfig
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import SlaveConfig

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

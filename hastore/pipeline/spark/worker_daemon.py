"""The process that Spark forks its Python workers from, with the modules that reading a log needs.

Spark plans each read in two or three new workers, which inherit the daemon's imports.
``spark.python.daemon.module`` names this module, on local masters only: on a cluster the package
reaches a worker after its daemon has started.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

from pyspark import daemon

from hastore.pipeline.source import batch_reader, data_source

if TYPE_CHECKING:
    from socket import socket  # noqa: TID251 - the type alone

__all__ = ["batch_reader", "data_source"]

_SERVE: Final = daemon.worker


def serve(sock: socket, authenticated: bool) -> int:  # noqa: FBT001 - pyspark.daemon calls it so
    """Serve a socket's tasks as ``pyspark.daemon.worker`` does, but ignore a closed connection.

    Spark closes it when it has enough rows (``limit``, ``show``), and its own daemon then prints a
    traceback.  Spark prints any other error, or has sent it to the driver already.
    """
    try:
        return _SERVE(sock, authenticated)
    except ConnectionError:
        return 1  # this worker gets no more tasks


if __name__ == "__main__":
    gc.freeze()  # keeps the collector from writing to pages shared with the forked workers
    daemon.worker = serve
    daemon.manager()

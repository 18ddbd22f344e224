"""The process that Spark's Python workers are forked from, with all that reading a log imports.

Spark plans each read in two or three new workers: what the daemon has imported, they need not.
``spark.python.daemon.module`` names it, on local masters only: elsewhere the package reaches a
worker after its daemon has begun.
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
    """Serve a socket's tasks as ``pyspark.daemon.worker`` does; a hang-up is no error.

    Spark hangs up when it has enough rows (``limit``, ``show``), and its own daemon prints a
    traceback then.  Another error is Spark's to print, or has been sent to the driver already.
    """
    try:
        return _SERVE(sock, authenticated)
    except ConnectionError:
        return 1  # this worker gets no other task


if __name__ == "__main__":
    gc.freeze()  # what is there now is shared with the workers: no collection writes to it
    daemon.worker = serve
    daemon.manager()

"""The process that Spark's Python workers are forked from, with all that reading a log imports.

Spark plans each read in two or three new workers: what the daemon has imported, they need not.
``spark.python.daemon.module`` names it, on local masters only: elsewhere the package reaches a
worker after its daemon has begun.
"""

from __future__ import annotations

import gc

from pyspark import daemon

from hastore.pipeline import batch_reader, data_source

__all__ = ["batch_reader", "data_source"]

if __name__ == "__main__":
    gc.freeze()  # what is there now is shared with the workers: no collection writes to it
    daemon.manager()

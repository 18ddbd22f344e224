"""Logs of masters and slaves as Spark tables, and the jobs over them.

::

    with hastore.pipeline.spark_session("local[*]") as spark:
        log = hastore.pipeline.read(spark, "/data/n1", columns=["topic", "size"])

Needs the extra ``spark`` and Java (17, 21 or 25.0.3), or the extra ``jre``.  The public names
are imported on first use (``names``).  To read the code, begin with ``source``
(tables) and ``verify`` (a job).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.pipeline.names import find_name as __getattr__  # noqa: F401 - Python calls it
from hastore.pipeline.names import list_names as __dir__  # noqa: F401 - and this

if TYPE_CHECKING:
    from hastore.pipeline.spark.session import register, spark_session
    from hastore.pipeline.spark.table import read, read_stream

__all__ = ["read", "read_stream", "register", "spark_session"]

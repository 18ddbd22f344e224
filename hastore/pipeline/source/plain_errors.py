"""Send hastore's errors from Spark's Python workers to the driver without a traceback.

Spark quotes a worker's error in its own: first the worker's stack frames, last what is wrong.  The
text and the note of a hastore error say everything, so the frames are left out.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from hastore.errors import HastoreError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Hide the traceback of a HastoreError that leaves the block.

    pyspark reads the variable when it sends an error, and then ends the worker.  With
    ``HASTORE_DEBUG`` the traceback is sent too.
    """
    try:
        yield
    except HastoreError:
        if not os.environ.get("HASTORE_DEBUG"):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise

"""Errors of hastore as Spark's Python workers send them to the driver: without a traceback.

Spark puts the text of a worker's error into its own, which then begins with the frames of that
worker and ends with what is wrong.  An error of ours says all of it in its text and its note.
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
    """Have an error of hastore that leaves the block sent as its text alone.

    pyspark looks at this variable when it sends an error, and ends the worker behind it.  With
    ``HASTORE_DEBUG`` the traceback is sent, too.
    """
    try:
        yield
    except HastoreError:
        if not os.environ.get("HASTORE_DEBUG"):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise

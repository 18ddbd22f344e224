"""Commit logs as Arrow columns: ranges of a log, decoded without a Python object for a message.

Needs numpy and pyarrow (the extra ``spark``), but neither Spark nor a JVM.

Begin with ``range_decoder``.
"""

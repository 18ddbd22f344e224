"""Commit logs as Arrow columns: ranges of a log, decoded without a Python object for a message.

Needs numpy and pyarrow (the extra ``spark``), not Spark: tools without a JVM read with
it too.
"""

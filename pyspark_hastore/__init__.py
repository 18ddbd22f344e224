"""Lets ``spark.read.format("hastore")`` find the data source without a register call.

At the first use of a Python data source Spark imports every installed top-level module that is
named ``pyspark_…``, and takes its ``DefaultSource``.
"""

from hastore.pipeline.source.data_source import HaStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]

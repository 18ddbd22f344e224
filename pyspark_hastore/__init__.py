"""Lets ``spark.read.format("hastore")`` find the data source without a call to ``register``.

At the first use of a Python data source, Spark imports every installed top-level module named
``pyspark_…`` and registers its ``DefaultSource``.
"""

from hastore.pipeline.source.data_source import HaStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]

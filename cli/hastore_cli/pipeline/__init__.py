"""``hastore pipeline``: jobs over logs, on Spark.  Begin with ``commands`` and ``run``."""

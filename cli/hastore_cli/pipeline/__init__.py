"""``hastore pipeline``: a module for each job.  Begin with ``run``."""

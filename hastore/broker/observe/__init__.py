"""Status, what is healthy (``findings``), metrics.  Begin with ``node_status``."""

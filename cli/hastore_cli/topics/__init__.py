"""``hastore topic`` and ``group``: what a node knows of both.  Begin with ``node_queries``."""

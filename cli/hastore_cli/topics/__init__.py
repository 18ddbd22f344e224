"""``hastore topic`` and ``hastore group``.  Begin with ``node_queries``."""

"""``hastore consume`` and ``get``: read messages from a node.  Begin with ``run``, ``lookup``."""

"""``hastore consume`` and ``get``: messages read from a node.  Begin with ``run``, ``lookup``."""

"""``make demo``.  Begin with ``demo``."""

"""Archives of a log: their manifest, and which files they hold.  Begin with ``manifest``."""

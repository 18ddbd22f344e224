"""``hastore doctor``: everything that can be wrong with some nodes.  Begin with ``rules``."""

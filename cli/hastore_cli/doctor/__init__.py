"""``hastore doctor``: everything that can be wrong with some nodes."""

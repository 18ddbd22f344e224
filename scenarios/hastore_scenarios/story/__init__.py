"""What a story is told on, and where stories are found.  Begin with ``world``."""

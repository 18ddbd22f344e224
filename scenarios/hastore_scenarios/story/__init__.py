"""A scenario, and what it is told on.  Begin with ``world``."""

"""A scenario, and the `World` that it runs on.  Begin with ``world``."""

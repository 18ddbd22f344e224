"""A run as one HTML page.  Begin with ``page``."""

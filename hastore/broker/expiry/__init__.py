"""Deleting what has expired.  Begin with ``expiry``."""

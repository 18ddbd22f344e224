"""Deletion of expired files.  Begin with ``expiry``."""

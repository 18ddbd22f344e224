"""The optional C extension for the loops that run once a record.  Begin with ``in_use``."""

"""The optional C extension for what a node does once a record or frame.  Begin with ``in_use``."""

"""The job ``verify``: a log, its consume queues and its index.  Begin with ``job``."""

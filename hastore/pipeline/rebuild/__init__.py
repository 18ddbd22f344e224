"""The job ``rebuild``: consume queues and index from the log.  Begin with ``job``."""

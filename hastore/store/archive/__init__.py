"""What an archive holds of a log.  Begin with ``manifest``."""

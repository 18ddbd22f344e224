"""What a history promised, compared with the logs that are left.  Begin with ``checker``."""

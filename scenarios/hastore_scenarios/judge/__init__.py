"""The checker: a history compared with the logs at the end of a run.  Begin with ``checker``."""

"""The job ``rpo``: what became of each put of a history.  Begin with ``job``."""

"""What reads or repairs a directory while no node runs on it.  Begin with ``log_walker``."""

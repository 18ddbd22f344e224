"""Opening a store after a clean or an unclean stop.  Begin with ``log_loader``."""

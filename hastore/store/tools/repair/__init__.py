"""Repairing a damaged log, with or without a replica.  Begin with ``log_repair``."""

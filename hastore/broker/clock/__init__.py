"""Whether this machine's clock can be trusted.  Begin with ``clock_verdict``."""

"""One message in a log: its layout, its bytes, its checks.  Begin with ``layout``."""

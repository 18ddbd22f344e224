"""One message in a log: its bytes and its checks.  Begin with ``message_codec``."""

"""``hastore produce``: send lines as messages, report each outcome.  Begin with ``run``."""

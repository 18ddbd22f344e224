"""``hastore produce``: lines in, messages sent, what became of each out.  Begin with ``run``."""

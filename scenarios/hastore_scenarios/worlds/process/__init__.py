"""Nodes as processes, behind proxies.  Begin with ``world``."""

"""Nodes as processes, behind proxies.  Begin with ``process_world``."""

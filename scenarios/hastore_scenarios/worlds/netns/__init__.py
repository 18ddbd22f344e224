"""Nodes in network namespaces.  Begin with ``world``."""

"""Nodes in network namespaces.  Begin with ``netns_world``."""

"""Nodes in the simulator.  Begin with ``world``."""

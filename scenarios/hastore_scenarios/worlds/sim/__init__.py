"""Nodes in the simulator.  Begin with ``sim_world``."""

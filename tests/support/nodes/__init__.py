"""Nodes in this process, and their peers: begin with ``harness``."""

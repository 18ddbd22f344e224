"""Whole clusters with faults: begin with ``checked``."""

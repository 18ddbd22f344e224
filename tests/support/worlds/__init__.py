"""Whole clusters with faults: begin with ``judged``."""

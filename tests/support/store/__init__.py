"""Stores and their parts on a fake disk: begin with ``open_log``; for data, ``log_builder``."""

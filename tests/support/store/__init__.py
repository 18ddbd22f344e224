"""Stores and their parts on a fake disk: begin with ``open_log``; ``log_builder`` for a log as data."""

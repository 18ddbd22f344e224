"""Waking, waiting and deadlines: what the services of every layer share.

A put is decided here: begin with ``group_commit_request``.
"""

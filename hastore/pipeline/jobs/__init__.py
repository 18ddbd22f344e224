"""The import names that version 0.1.0 documented for two jobs.

Each job itself lives in a folder beside this one: begin with ``verify``.
"""

"""Shared by all commands: the terminal, errors, logging and times.

Begin with ``command`` and ``terminal``.
"""

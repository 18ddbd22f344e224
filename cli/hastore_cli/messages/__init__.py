"""Prints messages: lines, details, JSON, ``-F``.

Begin with ``printer``.
"""

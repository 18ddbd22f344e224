"""One message for people and for programs: lines, details, JSON, ``-F``.

Begin with ``printer``.
"""

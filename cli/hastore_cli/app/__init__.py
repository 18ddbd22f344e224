"""What all commands share: the terminal, errors, logging and times.

Begin with ``command`` and ``terminal``.
"""

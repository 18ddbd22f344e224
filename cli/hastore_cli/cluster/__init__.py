"""``hastore cluster``: a replica group's roles, with and without a coordinator.

Begin with ``commands``.
"""

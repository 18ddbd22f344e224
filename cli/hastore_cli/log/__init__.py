"""``hastore log``: look into commit logs, search, repair and rebuild them.

Begin with ``commands``.
"""

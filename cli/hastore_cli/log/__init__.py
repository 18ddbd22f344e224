"""``hastore log``: inspect, search, repair and rebuild commit logs.

Begin with ``commands``.
"""

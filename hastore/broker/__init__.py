"""A node: its parts in order, puts, pulls and queries, delays, expiry, the client port.

Begin with ``node.master`` and ``puts.put_message``.
"""

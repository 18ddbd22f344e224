"""Clients of a node: producer, consumer and admin, all on ``remoting_client``.

Begin with ``producer``.
"""

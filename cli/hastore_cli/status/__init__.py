"""``hastore status``, ``check``, ``wait`` and ``explain``: the state of running nodes.

Begin with ``command`` and ``table``; ``hastore.broker.observe.findings`` decides what is healthy.
"""

"""``hastore status``, ``check``, ``wait`` and ``explain``: what nodes say of themselves.

Begin with ``command`` and ``table``; what is healthy is decided in
``hastore.broker.observe.findings``.
"""

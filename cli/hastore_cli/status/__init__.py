"""``hastore status``, ``check``, ``wait`` and ``explain``: what nodes say of themselves."""

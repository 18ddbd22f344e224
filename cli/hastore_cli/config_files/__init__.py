"""``hastore config``: begin with ``commands``; ``sample`` is what it writes."""

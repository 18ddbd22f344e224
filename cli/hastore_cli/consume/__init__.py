"""``hastore consume`` and ``hastore get``."""

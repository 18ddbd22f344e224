"""``hastore topic`` and ``hastore group``."""

"""``hastore scenario`` and ``hastore sim``."""

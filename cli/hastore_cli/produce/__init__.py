"""``hastore produce``."""

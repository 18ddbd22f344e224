"""A node's settings: the table, TOML, environment, flags.  Begin with ``settings``."""

"""The settings of a node: their table, kinds, TOML, environment.  Begin with ``settings``."""

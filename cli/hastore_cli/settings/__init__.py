"""The settings of a node: table, kinds, TOML, environment.  Begin with ``settings``."""

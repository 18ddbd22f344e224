"""Topics, consumer groups, their members and offsets.  Begin with ``broker_data``."""

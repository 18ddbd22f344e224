"""Status, metrics, health.  Begin with ``node_status``."""

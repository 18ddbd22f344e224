"""Status, health rules (``findings``), metrics.  Begin with ``node_status``."""

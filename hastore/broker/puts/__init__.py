"""A message from a producer to its status.  Begin with ``put_message``."""

"""Index files: from a key to the messages that have it.  Begin with ``service``."""

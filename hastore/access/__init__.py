"""Access keys: signatures, permissions, and the files of both.  Begin with ``signature``."""

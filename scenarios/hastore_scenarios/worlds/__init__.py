"""The worlds: what each does alike.  Begin with ``staged_world``."""

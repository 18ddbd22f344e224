"""The worlds in which stories run, and what they share.  Begin with ``staged_world``."""

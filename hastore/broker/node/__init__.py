"""A master and a slave: the parts, their start and their stop.  Begin with ``master``."""

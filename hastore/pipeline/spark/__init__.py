"""Spark sessions, their JVM and their workers.  Begin with ``session``."""

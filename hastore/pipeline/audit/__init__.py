"""The job ``audit``: replicas compared with their master.  Begin with ``job``."""

"""Who may ask the client port for what: rules, permissions in force.  Begin with ``rules``."""

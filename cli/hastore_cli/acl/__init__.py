"""hastore acl: permissions and keys; the key of every command.  Begin with ``commands``."""

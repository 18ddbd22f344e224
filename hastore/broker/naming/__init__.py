"""Telling RocketMQ's name servers where this node is.  Begin with ``name_server_registration``."""

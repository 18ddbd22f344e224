"""Consume queues: where each message of a queue lies in the log.  Begin with ``consume_queue``."""

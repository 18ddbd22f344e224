"""Delayed messages.  Begin with ``schedule_message_service``."""

"""Dispatch: puts the log's confirmed records into consume queues and index.

Begin with ``reput_message_service``.
"""

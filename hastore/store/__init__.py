"""Log, consume queues, index and checkpoint on disk, and their recovery: synchronous, no trio.

Begin with ``message_store``.
"""

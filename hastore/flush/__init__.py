"""Forcing log, consume queues, index and checkpoint to disk; having the next file ready.

Begin with ``flush_manager``.
"""

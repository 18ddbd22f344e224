"""The catalog: one scenario per file, numbered in the order in which they are best read.

Begin with ``s01_sync_put``.
"""

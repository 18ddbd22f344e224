"""The coordinator of a replica group: where its nodes agree on epoch, master and set.

Begin with ``key_value_store``: what is asked of a coordinator.
"""

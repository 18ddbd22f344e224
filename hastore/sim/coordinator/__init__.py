"""The simulator's coordinator: a model of etcd in virtual time, with etcd's faults.

Begin with ``etcd_model``; ``model_client`` is one node's way to it.
"""

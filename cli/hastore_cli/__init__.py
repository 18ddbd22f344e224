"""The command line of hastore: click groups, and the only place that prints.

Begin with ``main``.
"""

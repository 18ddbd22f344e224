"""``hastore up``, ``scenario`` and ``sim``: a group to try, failure stories, virtual time.

Begin with ``up``, ``scenario_run`` and ``sim_run``.
"""

"""``hastore scenario`` and ``hastore sim``: failure stories, and clusters in virtual time.

Begin with ``scenario_run`` and ``sim_run``.
"""

"""The simulator's replica groups: nodes that change their roles, and a model of who decides that.

Begin with ``group_simulation``: the phases of a run.  ``controller`` is the model, ``group_oracle``
says what must hold.
"""

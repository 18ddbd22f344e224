"""The deterministic simulator: clusters of the real code in virtual time, by seed.

    seams -> guards -> disk, network -> host (an Env) -> cluster -> faults, oracle -> simulation

Same seed and commit, same run: in any process, under any PYTHONHASHSEED.  Begin with
``simulation``.
"""

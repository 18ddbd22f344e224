"""``hastore master`` and ``hastore slave``, and connections to running nodes."""

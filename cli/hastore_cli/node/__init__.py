"""``hastore master`` and ``hastore slave``, and connections to running nodes.

Begin with ``commands`` and ``runner``.
"""

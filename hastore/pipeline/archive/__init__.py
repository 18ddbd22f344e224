"""The jobs ``archive`` and ``restore``: segments of a log as Parquet, and back.

Begin with ``job``.
"""

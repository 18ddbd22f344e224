"""The jobs ``export`` and ``import``: messages to files, and from files to a master.

Begin with ``export_job`` and ``import_job``.
"""

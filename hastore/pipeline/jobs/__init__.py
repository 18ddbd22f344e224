"""The jobs, a module each: a constant ``INFO`` and a function that reads, transforms and writes.

Transforms are named functions from DataFrame to DataFrame without I/O, so that a notebook can use
them.  The list of jobs is ``hastore_cli.pipeline_commands``.
"""

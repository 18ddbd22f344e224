"""The public names of the job ``archive``."""

from hastore.pipeline.archive.job import INFO, archive, read_archive

__all__ = ["INFO", "archive", "read_archive"]

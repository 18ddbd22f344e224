"""The public name of the job ``verify``."""

from hastore.pipeline.verify.job import INFO, verify

__all__ = ["INFO", "verify"]

"""What only the pipeline can find wrong."""

from __future__ import annotations

from hastore.errors import HastoreError


class OffsetsExpiredError(HastoreError):
    """Records are gone that a stream had still to read."""

    exit_code = 4


class LogReplacedError(HastoreError):
    """The log is not the one that a stream has read so far: another one, or its tail was cut."""

    exit_code = 4

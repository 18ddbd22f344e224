"""What every job of the pipeline gives back, and what is told of it before it runs.

Needs no Spark: ``hastore pipeline list`` is for people who have not installed it yet.
"""

from __future__ import annotations

from typing import Any, Final, final

import attrs

ROWS_MAX: Final = 100  # what a person still reads; a job counts everything


@final
@attrs.frozen(kw_only=True)
class JobResult:
    """What a job found out."""

    name: str  # of the job
    columns: tuple[str, ...]  # of the rows, in order
    rows: list[dict[str, Any]]  # at most ROWS_MAX findings, or the lines of a table
    summary: dict[str, Any]  # counts and the verdict: values that JSON has
    found: bool = False  # something is wrong: exit code 4
    files: tuple[str, ...] = ()  # what was written


@final
@attrs.frozen(kw_only=True)
class JobInfo:
    """What a job is for."""

    name: str
    summary: str  # a line
    description: str  # a paragraph: what it reads, and what the columns mean
    examples: tuple[str, ...]

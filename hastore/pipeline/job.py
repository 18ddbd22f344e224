"""The result that every job of the pipeline returns, and the help shown before it runs.

Needs no Spark: ``hastore pipeline list`` works before it is installed.
"""

from __future__ import annotations

from typing import Any, Final, final

import attrs

ROWS_MAX: Final = 100  # shown to a person; the summary counts everything


@final
@attrs.frozen(kw_only=True)
class JobResult:
    """The findings of one run of a job."""

    name: str  # of the job
    columns: tuple[str, ...]  # of the rows, in order
    rows: list[dict[str, Any]]  # at most ROWS_MAX findings, or the lines of a table
    summary: dict[str, Any]  # counts and the verdict, as JSON values
    found: bool = False  # whether something is wrong: exit code 4
    files: tuple[str, ...] = ()  # paths written


@final
@attrs.frozen(kw_only=True)
class JobInfo:
    """The help for one job."""

    name: str
    summary: str  # one line
    description: str  # a paragraph: what it reads, and what the columns mean
    examples: tuple[str, ...]

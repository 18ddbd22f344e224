"""Why a repair leaves a member's log unverified: ``Unverified.why``, and what it means for readers.

A reason covers a range that is joined with earlier ones, so most of its records may be untouched.
"""

from __future__ import annotations

from typing import Final

FILLED: Final = "log repair filled the place of lost messages"
CUT: Final = "log repair cut the log there"
UNFINISHED: Final = "log repair has not finished"
UNPROVEN: Final = "log repair took the bytes of a log without epochs"

# An intact record there, other than a filler, is that of the group's log.  With UNPROVEN it may be
# another log's.
INTACT_IS_RIGHT: Final = frozenset({FILLED, CUT, UNFINISHED})

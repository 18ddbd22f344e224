"""Whether the kernel takes its wall clock for right: adjtimex(2), which Python does not have.

An NTP daemon tells the kernel each time it has compared the clock.  The kernel takes the clock for
wrong (TIME_ERROR) after a start, after a setting by hand, and when no daemon has said so for long.
"""

from __future__ import annotations

import ctypes
from typing import Final

_STRUCT_SIZE_MAX: Final = 1_024  # struct timex has 208 bytes; its first field, modes, 0: only read
_TIME_ERROR: Final = 5

_libc = ctypes.CDLL(None)


def is_clock_synchronised() -> bool:
    """Return whether the kernel says so; False if it may not be asked, as in some containers."""
    state: int = _libc.adjtimex(ctypes.create_string_buffer(_STRUCT_SIZE_MAX))
    return 0 <= state < _TIME_ERROR

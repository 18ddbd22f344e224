"""Large buffers go back to the system as soon as they are freed.

glibc takes blocks of 128 KiB and more from the system one by one, and returns them so; but each one
that is freed raises that threshold, up to 32 MiB, and what is below it comes from a heap that has
holes and does not shrink.  A node that has held many large requests or answers at once would keep
up to twice their size for good.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # mallopt(3)
LARGE_SIZE: Final = 512 * 1024


def return_large_buffers() -> None:
    """Fix the threshold, where the C library has one."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_SIZE)

"""This process's memory as the kernel sees it: mlock, munlock, madvise, anonymous maps.

By ctypes, because the calls of Python's ``mmap`` hold the GIL and there is no mlock among them; a
call through ctypes releases it, so that the event loop goes on while a gigabyte is zeroed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Final, final

MADV_WILLNEED: Final = 3
MADV_POPULATE_WRITE: Final = 23  # Linux 5.14

_HINTS: Final = {
    errno.EPERM: "RLIMIT_MEMLOCK is 0: raise ulimit -l",
    errno.ENOMEM: "RLIMIT_MEMLOCK or the memory itself is too small: raise ulimit -l",
    errno.EAGAIN: "RLIMIT_MEMLOCK is too small: raise ulimit -l",
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = _libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _address(buffer: mmap.mmap) -> int:
    # The exported buffer is given up before the call: whoever calls keeps the map open meanwhile.
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _refusal(result: int, call: str) -> str | None:
    if result == 0:
        return None
    code = ctypes.get_errno()
    hint = _HINTS.get(code) if call == "mlock" else None
    return f"{call}: {os.strerror(code)}" + (f" ({hint})" if hint else "")


@final
class RealMemory:
    """Linux."""

    def anonymous(self, size: int) -> mmap.mmap:
        """Map private zeros."""
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def lock(self, buffer: mmap.mmap) -> str | None:
        """Lock by mlock(2)."""
        return _refusal(_libc.mlock(_address(buffer), len(buffer)), "mlock")

    def unlock(self, buffer: mmap.mmap) -> str | None:
        """Unlock by munlock(2)."""
        return _refusal(_libc.munlock(_address(buffer), len(buffer)), "munlock")

    def will_need(self, buffer: mmap.mmap) -> str | None:
        """Advise by madvise(2)."""
        return _refusal(_libc.madvise(_address(buffer), len(buffer), MADV_WILLNEED), "madvise")

    def populate(self, buffer: mmap.mmap, position: int, size: int) -> str | None:
        """Touch by madvise(2)."""
        assert position + size <= len(buffer)
        address = _address(buffer) + position
        return _refusal(_libc.madvise(address, size, MADV_POPULATE_WRITE), "madvise")

"""Memory and the page cache as the kernel sees them: mlock, munlock, madvise, sync_file_range.

Called through ctypes: Python has no mlock and no sync_file_range, and its ``mmap`` calls hold the
GIL.  A ctypes call releases it, so the event loop runs while a gigabyte is zeroed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Final, final

MADV_WILLNEED: Final = 3
MADV_POPULATE_WRITE: Final = 23  # Linux 5.14
_WAIT_BEFORE_WRITE_WAIT_AFTER: Final = 1 | 2 | 4

_HINTS: Final = {
    errno.EPERM: "RLIMIT_MEMLOCK is 0: raise ulimit -l",
    errno.ENOMEM: "RLIMIT_MEMLOCK or the memory itself is too small: raise ulimit -l",
    errno.EAGAIN: "RLIMIT_MEMLOCK is too small: raise ulimit -l",
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = _libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _address(buffer: mmap.mmap) -> int:
    # The buffer export ends here, before the call, so the caller must keep the map open.
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _refusal(result: int, call: str) -> str | None:
    if result == 0:
        return None
    code = ctypes.get_errno()
    hint = _HINTS.get(code) if call == "mlock" else None
    return f"{call}: {os.strerror(code)}" + (f" ({hint})" if hint else "")


@final
class RealMemory:
    """This process's memory, on Linux."""

    def anonymous(self, size: int) -> mmap.mmap:
        """Return a private map of zeros."""
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def lock(self, buffer: mmap.mmap) -> str | None:
        """Lock pages by mlock(2)."""
        return _refusal(_libc.mlock(_address(buffer), len(buffer)), "mlock")

    def unlock(self, buffer: mmap.mmap) -> str | None:
        """Unlock pages by munlock(2)."""
        return _refusal(_libc.munlock(_address(buffer), len(buffer)), "munlock")

    def will_need(self, buffer: mmap.mmap) -> str | None:
        """Advise by madvise(2)."""
        return _refusal(_libc.madvise(_address(buffer), len(buffer), MADV_WILLNEED), "madvise")

    def populate(self, buffer: mmap.mmap, position: int, size: int) -> str | None:
        """Fault pages in by madvise(2)."""
        assert position + size <= len(buffer)
        address = _address(buffer) + position
        return _refusal(_libc.madvise(address, size, MADV_POPULATE_WRITE), "madvise")


def forget_pages(descriptor: int, position: int, size: int) -> None:
    """Write dirty pages of a file out, then drop all clean ones that are not mapped.

    Forces neither the file's metadata nor the drive's own cache, so it costs next to nothing where
    nothing is dirty.  Raises OSError if the bytes cannot be written.
    """
    flags = _WAIT_BEFORE_WRITE_WAIT_AFTER
    if _libc.sync_file_range(descriptor, position, size, flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)

"""Letting the page cache forget a file's pages, so that the next read tells what the disk has.

By ctypes: Python has no ``sync_file_range``, and a call through ctypes releases the GIL.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_WAIT_BEFORE_WRITE_WAIT_AFTER: Final = 1 | 2 | 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def forget_pages(descriptor: int, position: int, size: int) -> None:
    """Write dirty pages out, then drop all that are clean and mapped by nobody.

    Writing out forces nothing: neither the file's metadata nor the drive's own cache, so it costs
    next to nothing where nothing is dirty.  Raises OSError where the bytes could not be written.
    """
    flags = _WAIT_BEFORE_WRITE_WAIT_AFTER
    if _libc.sync_file_range(descriptor, position, size, flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_DONTNEED)

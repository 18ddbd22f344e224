"""SHA-256 of files that are larger than memory."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

from hastore.errors import DiskError

if TYPE_CHECKING:
    from hastore.env.interface import Disk

_READ_SIZE: Final = 4 * 1024 * 1024


def file_digest(disk: Disk, path: str, size: int, *, zero_from: int | None = None) -> str:
    """Return the SHA-256 of a file's first ``size`` bytes, in hex; blocks.

    Bytes from ``zero_from`` on count as zeros.  Raises DiskError, also if the file is shorter.
    """
    digest, _ = digest_and_end(disk, path, size, zero_from=zero_from)
    return digest


def digest_and_end(
    disk: Disk, path: str, size: int, *, zero_from: int | None = None
) -> tuple[str, int]:
    """Return the same, and the position after the last byte that is not 0."""
    found, end = hashlib.sha256(), 0
    with contextlib.closing(disk.open_file(path, writable=False)) as file:
        for position in range(0, size, _READ_SIZE):
            wanted = min(_READ_SIZE, size - position)
            data = file.pread(wanted, position)
            if len(data) < wanted:
                raise DiskError(
                    f"{path} ends at {position + len(data)}, not at {size}",
                    path=path,
                    hint="it became shorter while it was read",
                )
            if zero_from is not None and position + wanted > zero_from:
                data = data[: max(zero_from - position, 0)].ljust(wanted, b"\0")
            used = len(data.rstrip(b"\0"))
            end = position + used if used else end
            found.update(data)
    return found.hexdigest(), end

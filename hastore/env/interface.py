"""The outside world as hastore sees it: disk, wall clock, off-load, randomness, raw sending.

Nothing else in ``hastore`` touches it.  Sockets are ``trio.socket`` and time is trio's, both of
which a simulator replaces at trio's own seams; everything that trio has no seam for is here.

Errors: every ``Disk`` and ``DiskFile`` method raises ``hastore.errors.DiskError``
(``DiskFullError`` where there is no space, ``FlushFailedError`` from ``sync``), never a bare
``OSError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    import trio

T = TypeVar("T")


class DiskFile(Protocol):
    """One file of fixed size, mapped for writing or (``buffer`` None) only opened for reading.

    Invariant: no memoryview of ``buffer`` outlives the file; ``close`` refuses while one does.
    """

    path: str
    size: int
    buffer: mmap.mmap | None

    def fileno(self) -> int:
        """Return the descriptor, for ``send_file``."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes at ``position`` without touching the map (cold data)."""

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write all of ``data`` at ``position`` without touching the map, whose view shows it.

        Bytes get there in order: a process that is killed meanwhile leaves a prefix of them, which
        a copy through the map does not promise.  After an error any part may have been written.
        """

    def next_data(self, position: int) -> int:
        """Return the first position from ``position`` on that may hold other bytes than 0.

        What lies before it was never written.  ``size`` where nothing follows.
        """

    def forget(self, position: int = 0, size: int = 0) -> None:
        """Have what the cache holds read from the disk next time; ``size`` 0: to the end.

        What is mapped stays; what is dirty is written out first, and not forced.  After a failed
        sync the kernel takes pages for clean that the disk does not have, and on ext4 not even
        writing them again brings them there: the cached block is taken to be on the disk as one
        that was written before.
        """

    def sync(self) -> None:
        """Force the file's bytes to the disk (fdatasync); blocks, so off-load it."""

    def unmap(self) -> None:
        """Give up the map and keep the descriptor, so that who reads by it goes on; idempotent.

        Raises BufferError while a memoryview of ``buffer`` lives.
        """

    def close(self) -> None:
        """Unmap and close; idempotent."""


class DirectoryLock(Protocol):
    """The exclusive lock on a store's ``lock`` file."""

    def release(self) -> None:
        """Give it up; idempotent."""


@attrs.frozen(kw_only=True)
class FileStat:
    """What ``stat`` says of one entry."""

    name: str
    size: int
    is_dir: bool
    modified_ms: int


class Disk(Protocol):
    """A file system, as small as can be so that every failure can be faked."""

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """List a directory's entries sorted by name; empty where it does not exist."""

    def exists(self, path: str) -> bool:
        """Whether something is there."""

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents, and sync each parent that got a new entry."""

    def create_file(self, path: str, size: int) -> DiskFile:
        """Create, allocate (posix_fallocate), sync the directory, and map a new file of zeros.

        A file left half-made by a failure is removed again.
        """

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open an existing file: mapped for writing, or for ``pread`` and ``send_file`` only.

        A writable file has all its blocks allocated first: writing to a hole in a map when the
        disk is full is SIGBUS, not an error.
        """

    def open_sparse_file(self, path: str, size: int) -> DiskFile:
        """Open a file for ``pread`` and ``pwrite`` without a map, made sparse where there is none.

        Its directory is made too, and nothing is synced: for what can be built again from the log.
        Where a hole meets a full disk ``pwrite`` raises DiskFullError; no map, so no SIGBUS.
        """

    def sync_dir(self, path: str) -> None:
        """Force a directory's entries to the disk."""

    def read_file(self, path: str) -> bytes:
        """Read a small file whole (at most 64 MiB)."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file so that a crash leaves the old or the new one, durably."""

    def remove(self, path: str) -> None:
        """Remove a file and sync its directory; nothing happens where there is none."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it, then sync its parent; nothing where there is none."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename within one file system and sync the directory."""

    def lock(self, path: str) -> DirectoryLock:
        """Take the exclusive lock as RocketMQ does: fcntl on byte 0 of the file, content ``lock``.

        Raises StoreLockedError where another process (or this one) has it.
        """

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written on the file system of ``path``."""

    def used_ratio(self, path: str) -> float:
        """How full the file system of ``path`` is, from 0 to 1."""


class Memory(Protocol):
    """This process's memory: buffers of its own, and what pages do.

    What the kernel refuses is no failure: each method gives the reason, or None where it was done.
    All of them may take long (a page is zeroed for each 4 KiB), so off-load them.
    """

    def anonymous(self, size: int) -> mmap.mmap:
        """Reserve zeros that belong to no file; a page costs memory once it is touched.

        Raises OSError where the address space or the commit limit is at its end.
        """

    def lock(self, buffer: mmap.mmap) -> str | None:
        """Bring all pages in and keep them there (mlock)."""

    def unlock(self, buffer: mmap.mmap) -> str | None:
        """Let the kernel take pages away again (munlock)."""

    def will_need(self, buffer: mmap.mmap) -> str | None:
        """Tell the kernel that all pages will be used soon (MADV_WILLNEED)."""

    def populate(self, buffer: mmap.mmap, position: int, size: int) -> str | None:
        """Touch pages for writing, as one store to each would (MADV_POPULATE_WRITE, Linux 5.14).

        ``position`` is a multiple of the page size.
        """


class WallClock(Protocol):
    """Wall time, for timestamps only: timeouts are trio's."""

    def now_s(self) -> float:
        """Seconds since 1970 (UTC), the cheaper question where the millisecond rarely changes."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 (UTC)."""

    def local_name(self, ms: int) -> str:
        """Write that time in this machine's zone as yyyyMMddHHmmssSSS: 17 digits, for names."""


class Randomness(Protocol):
    """Where jitter comes from."""

    def random(self) -> float:
        """A float in [0, 1)."""


class Offload(Protocol):
    """Runs blocking calls off the event loop."""

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a worker thread; a cancelled wait still waits for the call's end."""


class SendFile(Protocol):
    """sendfile(2) on a trio socket."""

    async def __call__(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> None:
        """Send exactly ``size`` bytes from ``position``; only the caller waits for the disk.

        Raises OSError where the link broke, DiskError where the file cannot be read.
        """


class SendNow(Protocol):
    """One attempt to send, for a caller that cannot wait."""

    def __call__(self, sock: trio.socket.SocketType, buffers: Sequence[bytes | memoryview]) -> int:
        """Send what the socket takes at once and say how many bytes that was.

        0 where it takes nothing, or is broken: the next ordinary send says what is wrong.
        """


@attrs.frozen(kw_only=True, eq=False)
class Env:
    """Everything of the outside world that hastore uses."""

    disk: Disk
    memory: Memory
    wall_clock: WallClock
    randomness: Randomness
    offload: Offload
    send_file: SendFile
    send_now: SendNow
    process_id: int

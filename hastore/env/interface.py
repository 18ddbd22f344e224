"""The outside world as hastore sees it: disk, wall clock, off-load, randomness, raw socket calls.

Nothing else in ``hastore`` touches it, except for sockets (``trio.socket``) and time (trio's),
which the simulator replaces inside trio.

Errors: every ``Disk`` and ``DiskFile`` method raises ``hastore.errors.DiskError``
(``DiskFullError`` where there is no space, ``FlushFailedError`` from ``sync``), never a bare
``OSError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import attrs

from hastore.env.failed_writes import FailedWrites

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    import trio

T = TypeVar("T")

SECTOR_SIZE: Final = 512  # the least that a disk writes whole
PAGE_SIZE: Final = 4096  # RocketMQ's OS_PAGE_SIZE, whatever the machine's pages are


class NamedFile(Protocol):
    """A file or directory that is held open, and the name that should lead to it.

    While it is held, no other file gets its inode number, so the two can be compared.
    """

    path: str

    @property
    def name_check(self) -> bytes:
        """What the check of the name needs in C (``name_check``); empty if it is done in Python."""

    @property
    def is_closed(self) -> bool:
        """Whether it is no longer held open."""

    def lost_name(self) -> str | None:
        """Return what has happened to the name; None if it leads to this file, or cannot be read.

        Also None once the file is closed.  Asks the file system, so it may wait for the disk.
        """


class DiskFile(NamedFile, Protocol):
    """A file of fixed size, mapped or (``buffer`` None) only for ``pread`` and ``pwrite``.

    Invariant: no memoryview of ``buffer`` outlives the file; ``close`` refuses while one does.
    """

    size: int
    buffer: mmap.mmap | None

    def fileno(self) -> int:
        """Return the file descriptor, for ``send_file``."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes at ``position`` without touching the map (cold data)."""

    def read_now(self, buffer: memoryview, position: int) -> int:
        """Read into ``buffer`` what needs no wait for the disk, and return how much; 0: unknown."""

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write all of ``data`` at ``position``; the map shows it.

        The bytes are written in order: a process killed meanwhile leaves a prefix of them, which a
        copy through the map does not guarantee.  After an error any part may have been written.
        """

    def make_pages(self, position: int, size: int) -> None:
        """Write zeros where zeros are, so that appends through the map find their pages there.

        Advice: an error is not reported, and changes nothing for the appends.
        """

    def next_data(self, position: int) -> int:
        """Return the first position at or after ``position`` whose byte may not be 0.

        The bytes between the two were never written.  Returns the file's size if none follows.
        """

    def forget(self, position: int = 0, size: int = 0) -> None:
        """Drop cached pages, so that they are read from the disk next time; ``size`` 0: to the end.

        Mapped pages stay; dirty ones are written out first, but not forced.  After a failed sync
        the kernel considers pages clean that the disk does not have.  On ext4 not even writing them
        again stores them, because their cached blocks still count as written.
        """

    def sync(self) -> None:
        """Force the file's bytes to the disk (fdatasync).  Blocks, so off-load it."""

    def sync_descriptor(self) -> int | None:
        """Return a descriptor whose fdatasync does all that ``sync`` does.

        None, or a negative number: there is none, or the file is closed.
        """

    def unmap(self) -> None:
        """Unmap the file but keep the descriptor, for readers that use it; idempotent.

        Raises BufferError while a memoryview of ``buffer`` lives.
        """

    def close(self) -> None:
        """Unmap and close; idempotent."""


class HeldName(NamedFile, Protocol):
    """A file or directory that is held only so that its name can be checked."""

    def close(self) -> None:
        """Release it; idempotent."""


class DirectoryLock(Protocol):
    """The exclusive lock on a store's ``lock`` file."""

    def release(self) -> None:
        """Release the lock; idempotent."""


@attrs.frozen(kw_only=True)
class FileStat:
    """One directory entry; ``size`` in bytes, ``modified_ms`` since 1970."""

    name: str
    size: int
    is_dir: bool
    modified_ms: int


@attrs.frozen(kw_only=True)
class FileStamp:
    """What changes when a file is written or replaced, and who may read it."""

    mode: int  # the permission bits
    size: int
    modified_ns: int
    inode: int
    device: int = 0  # of the file system; each snapshot of one has its own


@attrs.frozen(kw_only=True)
class DiskSpace:
    """How full a file system is."""

    device: int  # names the file system: the same for all directories on it
    used_ratio: float  # from 0 to 1, as df counts it
    free_bytes: int  # that can still be written
    free_inodes: int | None = None  # files that can still be made; None if it has no such limit


class Disk(Protocol):
    """A file system, kept small so that a test can fake every failure."""

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """Return a directory's entries sorted by name; empty if it does not exist."""

    def exists(self, path: str) -> bool:
        """Whether the path exists."""

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp; that of a link's target."""

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents; sync each parent that gets a new entry."""

    def create_file(self, path: str, size: int) -> DiskFile:
        """Create a file of zeros: allocate it (posix_fallocate), sync its directory, map it.

        After a failure the incomplete file is removed.
        """

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open an existing file: mapped for writing, or for ``pread`` and ``send_file`` only.

        All blocks of a writable file are allocated first: on a full disk, writing to a hole in a
        map is SIGBUS, not an error.
        """

    def open_sparse_file(
        self, path: str, size: int, *, creates: bool = True, make_dirs: bool = True
    ) -> DiskFile:
        """Open a file for ``pread`` and ``pwrite`` without a map; create it as a sparse file.

        Unless ``creates``, the file must exist.  Creates its directory, too, unless ``make_dirs``
        is false, and syncs nothing: for files that can be rebuilt from the log.
        On a full disk ``pwrite`` to a hole raises DiskFullError; without a map there is no SIGBUS.
        """

    def sync_dir(self, path: str) -> None:
        """Force a directory's entries to the disk."""

    def read_file(self, path: str) -> bytes:
        """Return the bytes of a small file (at most 64 MiB)."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file durably; a crash leaves either the old or the new one."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists, and sync its directory."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory, if it exists, with its contents, and sync its parent."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename within one file system and sync the directory."""

    def cannot_move(self, path: str) -> str | None:
        """Return what a directory is that ``rename`` cannot move with its files; None if it can.

        ``a mount point``, or ``a symbolic link``, of which only the link would move.
        """

    def lock(self, path: str) -> DirectoryLock:
        """Take the exclusive lock as RocketMQ does: fcntl on byte 0 of the file, content ``lock``.

        Raises StoreLockedError if another process (or this one) holds it.
        """

    def hold(self, path: str) -> HeldName:
        """Hold the file or directory at a path; neither its bytes nor its locks are touched."""

    def first_lost(self, named: Sequence[NamedFile]) -> NamedFile | None:
        """Return the first whose name no longer leads to it (``lost_name``); None if all do."""

    def space(self, path: str) -> DiskSpace:
        """Return how full the file system of ``path`` is."""


class Memory(Protocol):
    """This process's memory: anonymous buffers, and hints about pages.

    A refusal by the kernel is not an error: each hint returns the reason, or None if it was taken.
    All calls may take long (each page of 4 KiB is zeroed), so off-load them.
    """

    def anonymous(self, size: int) -> mmap.mmap:
        """Map zeros that belong to no file; a page uses memory once it is touched.

        Raises OSError when the address space or the commit limit is exhausted.
        """

    def lock(self, buffer: mmap.mmap) -> str | None:
        """Load all pages and keep them in memory (mlock)."""

    def unlock(self, buffer: mmap.mmap) -> str | None:
        """Allow the kernel to evict pages again (munlock)."""

    def will_need(self, buffer: mmap.mmap) -> str | None:
        """Advise the kernel that all pages will be used soon (MADV_WILLNEED)."""

    def populate(self, buffer: mmap.mmap, position: int, size: int) -> str | None:
        """Fault pages in for writing, as a store to each would (MADV_POPULATE_WRITE, Linux 5.14).

        ``position`` is a multiple of the page size.
        """


class KeptMemory(Protocol):
    """A few bytes of the machine's memory that belong to one name, held by this process alone."""

    @property
    def buffer(self) -> mmap.mmap | bytearray:
        """The bytes, as they are kept."""

    def close(self) -> None:
        """Release the name, and keep the bytes for the next process; idempotent."""


class MachineMemory(Protocol):
    """Bytes that outlive a process, but not the machine's boot: files in a memory file system."""

    def hold(self, name: str, size: int) -> KeptMemory | None:
        """Map ``size`` bytes that are kept under ``name``: zeros, if there are none.

        Returns None where the machine offers no such memory, or refuses it to this user.  Raises
        MemoryHeldError while another process, or another caller in this one, holds the name.
        """


class WallClock(Protocol):
    """Wall time, for timestamps only, and the machine's uptime: timeouts are trio's."""

    def now_s(self) -> float:
        """Return seconds since 1970 (UTC): cheaper where the millisecond rarely changes."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 (UTC)."""

    def boot_s(self) -> float:
        """Return seconds since the machine's start, those in which it slept included.

        No step of the wall time moves it.  For leases: trio's time stops while the machine sleeps.
        """

    def local_name(self, ms: int) -> str:
        """Return a time in the local zone as yyyyMMddHHmmssSSS: 17 digits, for file names."""


class Randomness(Protocol):
    """The source of jitter."""

    def random(self) -> float:
        """Return a float in [0, 1)."""


class SyncThread(Protocol):
    """Forces files to the disk off the event loop, one request at a time."""

    def start(self, files: Sequence[DiskFile]) -> None:
        """Begin to sync ``files`` (at least one), in order; stop at the first error.

        After its sync each file's name is checked: bytes of a lost file are not on the disk.
        Does not wait.  ``wait`` must follow, by any task.  Raises DiskError if no thread can be
        started: at the first call, or after one whose thread failed.
        """

    async def wait(self) -> None:
        """Wait for the end of the request, cancelled or not.

        Raises its FlushFailedError, or FileLostError for a file that is no longer at its name.
        """

    def close(self) -> None:
        """End the thread, if there is one, after a sync that still runs; idempotent."""


class Offload(Protocol):
    """Runs blocking calls off the event loop."""

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a worker thread; a cancelled caller still waits for its end."""

    def sync_thread(self) -> SyncThread:
        """Return a SyncThread: cheaper than ``run`` for one service's many syncs."""


class SendFile(Protocol):
    """sendfile(2) on a trio socket."""

    async def __call__(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> None:
        """Send exactly ``size`` bytes from ``position``; only the caller waits for the disk.

        Raises OSError if the link breaks, DiskError if the file cannot be read.
        """


class SendNow(Protocol):
    """One attempt to send, for a caller that cannot wait."""

    def __call__(self, sock: trio.socket.SocketType, buffers: Sequence[bytes | memoryview]) -> int:
        """Send as many bytes as the socket accepts at once, and return their number.

        Returns 0 for a broken socket, too; the next ordinary send raises its error.
        """


class SendWhile(Protocol):
    """Sending bytes that must not leave after some instant, however long the peer reads nothing."""

    async def __call__(
        self, sock: trio.socket.SocketType, data: memoryview, may_leave: Callable[[], bool]
    ) -> int | None:
        """Send what there is room for, once there is some, and return its size.

        Nothing runs between ``may_leave`` and the attempt that follows it.  Returns None once that
        says no: none of ``data`` has left.  Raises OSError if the link breaks.
        """


class Receive(Protocol):
    """Receiving where nothing has arrived yet, as a rule."""

    async def __call__(self, sock: trio.socket.SocketType, buffer: memoryview) -> int:
        """Wait until bytes have arrived, receive some into ``buffer`` and return their number.

        Returns 0 at the end of the stream.  Raises OSError if the link breaks.
        """


class Poll(Protocol):
    """Receiving without a sleep, for a caller that expects bytes within microseconds."""

    def __call__(
        self, sock: trio.socket.SocketType, buffer: memoryview, until: float
    ) -> int | None:
        """Try to receive until trio's time is ``until``; all other tasks wait meanwhile.

        Returns the number of bytes, 0 at the end of the stream, None if nothing came.  Raises
        OSError if the link breaks.  The simulator's never receives: its time stands still.
        """


class SecondReceiver(Protocol):
    """Another way to receive from a socket, while nobody receives from the socket itself."""

    async def receive(self, buffer: memoryview) -> int | None:
        """Receive as ``Receive`` does, always after a turn of all tasks.

        None if interrupted, or woken in vain: nothing was received.
        """

    def interrupt(self) -> None:
        """Let ``receive`` return: None, or what has woken it already."""

    def close(self) -> None:
        """Interrupt, and free what belongs to it; the socket stays open.  Idempotent."""


@attrs.frozen(kw_only=True, eq=False)
class Env:
    """Everything of the outside world that hastore uses."""

    disk: Disk
    memory: Memory
    machine_memory: MachineMemory
    wall_clock: WallClock
    randomness: Randomness
    offload: Offload
    send_file: SendFile
    send_now: SendNow
    send_while: SendWhile
    receive: Receive
    second_receiver: Callable[[trio.socket.SocketType], SecondReceiver]  # plain sockets only
    poll: Poll
    process_id: int
    boot_id: str | None  # names this boot of the machine: its page cache; None: unknown
    start_id: str  # names this start of the process: no other process has the same
    # Whether the kernel takes its wall clock for right, as an NTP daemon has told it.
    is_clock_synchronised: Callable[[], bool] = lambda: False
    # What could not be stored; ``recording`` makes the env of a node, whose disk feeds it.
    failed_writes: FailedWrites = attrs.field()

    @failed_writes.default
    def _failed_writes(self) -> FailedWrites:
        return FailedWrites(self.wall_clock.now_ms)

"""A disk in memory: a page cache, the bytes on the platter, and every way to lose them.

    programs ── map, pwrite ──► cache ── sync ──► durable          one Inode a file
                                  │                  │
       kill -9 keeps it ──────────┘                  └── a power cut keeps this, and of each
                                                         512-byte sector of the cache, or not

Directory entries are durable at once, because the real disk syncs them, except for sparse files and
the directories made for them: those are durable after ``sync_dir`` of their parent.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.env.interface import DiskSpace, FileStamp, FileStat
from hastore.errors import DiskError, DiskFullError, FlushFailedError, StoreLockedError
from hastore.sim.inode import Inode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hastore.env.interface import DirectoryLock, DiskFile, NamedFile

_HINT: Final = "a simulated fault"
_BLOCK_SIZE: Final = 4096


@final
@attrs.define(eq=False)
class SimFile:
    """An open file of a ``SimDisk``."""

    path: str
    size: int
    buffer: mmap.mmap | None
    disk: SimDisk
    inode: Inode
    is_writable: bool
    _is_closed: bool = False

    @property
    def name_check(self) -> bytes:
        """Nothing: there is no C here."""
        return b""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def lost_name(self) -> str | None:
        """Compare the file with the one at its name."""
        return None if self._is_closed else self.disk.lost_name(self.path, self.inode)

    def fileno(self) -> int:
        """Raise DiskError: simulated sockets need no descriptor."""
        raise DiskError(f"{self.path} has no descriptor in a simulation", path=self.path)

    def pread(self, size: int, position: int) -> bytes:
        """Read from the cache."""
        self._check()
        self.disk.check_read(self.path)
        return bytes(self.inode.cache[position : position + size])

    def read_now(self, buffer: memoryview, position: int) -> int:
        """Read from the cache, which has everything."""
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write to the cache."""
        self._check()
        assert self.is_writable, f"{self.path} was opened for reading"
        assert position + len(data) <= self.size, f"{self.path} ends before that"
        if self.inode.is_sparse and self.disk.is_full and not self.disk.free_bytes():
            raise self.disk.full(f"write {self.path}")  # other files have their blocks allocated
        self.inode.cache[position : position + len(data)] = bytes(data)
        self.inode.modified_ms = self.disk.now_ms()

    def make_pages(self, position: int, size: int) -> None:
        """Write zeros to the cache."""
        self.inode.cache[position : position + size] = bytes(size)

    def next_data(self, position: int) -> int:
        """Return the next position with data, skipping zeros by pages, as SEEK_DATA may."""
        seen = self.inode.cache
        page = 4096
        while position < self.size:
            end = min(position - position % page + page, self.size)
            if bytes(seen[position:end]).strip(b"\0"):
                return position
            position = end
        return self.size

    def forget(self, position: int = 0, size: int = 0) -> None:
        """Drop clean pages from the cache, so that they are read from the platter."""
        self._check()
        self.inode.forget(position, size)

    def sync(self) -> None:
        """Write the cache to the platter.  Raises FlushFailedError if a fault is planned."""
        self._check()
        self.disk.syncs += 1
        if self.disk.fails_sync(self.path):
            self.inode.fail_sync()
            msg = f"fdatasync of {self.path} failed: Input/output error"
            raise FlushFailedError(msg, path=self.path, hint=_HINT)
        self.inode.sync()

    def sync_descriptor(self) -> int | None:
        """Return None: simulated files have no descriptor."""
        return None

    def unmap(self) -> None:
        """Close the map; the cache keeps its bytes."""
        if self.buffer is None:
            return
        image = bytearray(self.buffer[:])
        self.buffer.close()  # BufferError while there is a view of it
        self.buffer = None
        self.inode.mapped -= 1
        self.inode.cache = image

    def close(self) -> None:
        """Unmap and close."""
        self.unmap()
        self._is_closed = True

    def _check(self) -> None:
        assert not self._is_closed, f"{self.path} was closed"


@final
@attrs.define(eq=False)
class SimHeldName:
    """A file or a directory (``inode`` None) whose name is checked."""

    path: str
    disk: SimDisk
    inode: Inode | None
    name_check: bytes = b""
    is_closed: bool = False

    def lost_name(self) -> str | None:
        """Compare it with what is at its name."""
        return None if self.is_closed else self.disk.lost_name(self.path, self.inode)

    def close(self) -> None:
        """Release it."""
        self.is_closed = True


@final
@attrs.define(eq=False)
class _SimLock:
    disk: SimDisk
    path: str

    def release(self) -> None:
        self.disk.locked.pop(self.path, None)


@final
@attrs.define(eq=False, repr=False)
class SimDisk:
    """The file system of one boot of one host; ``after_*`` make that of the next boot."""

    now_ms: Callable[[], int]
    inodes: dict[str, Inode] = attrs.field(factory=dict)
    dirs: dict[str, bool] = attrs.field(factory=lambda: {"/": True})  # whether the name is durable
    locked: dict[str, None] = attrs.field(factory=dict)
    capacity: int = 1 << 40
    sync_failures: int = 0  # how many of the next syncs fail
    sync_failures_in: str = ""  # only syncs of paths that contain this
    read_failures: int = 0  # how many of the next reads fail
    # The bytes that all files took when other programs took the rest; None: there is room.
    filled_at: int | None = None
    syncs: int = 0
    syncs_failed: int = 0  # errors that a program got in this boot
    reads_failed: int = 0  # likewise
    times_full: int = 0  # likewise
    files_lost: int = 0  # how often somebody else removed files of this boot's program
    power_cuts: int = 0  # so far
    # Files that could not be made or replaced the last time, in this boot.
    unstored: dict[str, None] = attrs.field(factory=dict, init=False)
    # What the machine's memory keeps by name, until its power is cut.
    machine_memory: dict[str, bytearray] = attrs.field(factory=dict)
    # By kind of error (sync, read, full): called the first time that a program gets one.
    on_fault: dict[str, Callable[[], None]] = attrs.field(factory=dict)

    # -- faults ------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether other programs have taken all room but that of this disk's own files."""
        return self.filled_at is not None

    def fill(self) -> None:
        """Let other programs take all room that is left: what is removed from now on is free."""
        self.filled_at = self.used_bytes()

    def make_room(self) -> None:
        """Let other programs give back what they took."""
        self.filled_at = None

    def fails_sync(self, path: str) -> bool:
        """Whether this sync fails; a failure is counted."""
        if self.sync_failures <= 0 or self.sync_failures_in not in path:
            return False
        self.sync_failures -= 1
        self.syncs_failed += 1
        self._notify("sync")
        return True

    def check_read(self, path: str) -> None:
        """Raise DiskError where this read fails."""
        if self.read_failures > 0:
            self.read_failures -= 1
            self.reads_failed += 1
            self._notify("read")
            raise DiskError(f"cannot read {path}: Input/output error", path=path, hint=_HINT)

    def full(self, doing: str) -> DiskFullError:
        """Count and return the error of a disk without room."""
        self.times_full += 1
        self._notify("full")
        msg = f"no space to {doing}: No space left on device"
        return DiskFullError(msg, path=doing.rpartition(" ")[2], hint=_HINT)

    def lose(self, path: str) -> None:
        """Remove a file or directory from under the program that has it open."""
        self.files_lost += 1
        self.remove(path)
        self.remove_tree(path)

    def _notify(self, what: str) -> None:
        notify = self.on_fault.pop(what, None)
        if notify is not None:
            notify()

    def after_kill(self) -> SimDisk:
        """Return the disk after kill -9: with its cache, without open files and locks."""
        return self._after(lambda inode: (bytearray(inode.cache), inode.durable, inode.clean), None)

    def after_power_cut(self, keeps: Callable[[], bool]) -> SimDisk:
        """Return the disk after a power cut; ``keeps`` is asked for each dirty sector and name."""

        def image(inode: Inode) -> tuple[bytearray, bytes, bytes | None]:
            left = inode.after_power_cut(keeps)
            return bytearray(left), left, None

        return self._after(image, keeps)

    def after_storage_was_lost(self, keeps: Callable[[], bool]) -> SimDisk:
        """Return the disk after its file system went down and came back, while the machine ran on.

        Files are those after a power cut, which ``keeps`` decides; the machine has not booted.
        """
        return self.after_power_cut(keeps).on_the_machine_of(self)

    def snapshot(self) -> SimDisk:
        """Return a copy of all files as programs see them now, page cache included."""
        inodes = {}
        for path, inode in self.inodes.items():
            seen = inode.seen()
            inodes[path] = Inode(
                bytearray(seen), seen, modified_ms=inode.modified_ms, is_sparse=inode.is_sparse
            )
        return SimDisk(self.now_ms, inodes, dict.fromkeys(self.dirs, True), capacity=self.capacity)

    @contextlib.contextmanager
    def without_faults(self) -> Iterator[None]:
        """Let no planned fault of this disk meet what is done to it meanwhile, by no node."""
        failures, filled_at = self.read_failures, self.filled_at
        self.read_failures, self.filled_at = 0, None
        try:
            yield
        finally:
            self.read_failures, self.filled_at = failures, filled_at

    def on_the_machine_of(self, other: SimDisk) -> SimDisk:
        """Put this disk into the machine of another one, and return it."""
        self.power_cuts, self.machine_memory = other.power_cuts, other.kept_memory()
        return self

    def kept_memory(self) -> dict[str, bytearray]:
        """Return a copy of the machine's memory: a killed process still unwinds, without effect."""
        return {name: bytearray(kept) for name, kept in self.machine_memory.items()}

    def _after(
        self,
        image: Callable[[Inode], tuple[bytearray, bytes, bytes | None]],
        keeps: Callable[[], bool] | None,
    ) -> SimDisk:
        inodes, dirs = {}, dict(self.dirs)
        if keeps is not None:
            dirs = _kept_dirs(self.dirs, keeps)
        for path, inode in self.inodes.items():
            if keeps is not None:
                is_there = _parent(path) in dirs
                if not is_there or not (inode.is_name_durable or keeps()):
                    continue
            cache, durable, clean = image(inode)
            is_durable = keeps is not None or inode.is_name_durable
            inodes[path] = Inode(
                cache,
                durable,
                clean,
                is_durable,
                inode.modified_ms,
                inode.is_sparse,
                stale=inode.stale if keeps is None else frozenset(),
            )
        disk = SimDisk(self.now_ms, inodes, dirs, capacity=self.capacity, filled_at=self.filled_at)
        disk.power_cuts = self.power_cuts + (keeps is not None)
        if keeps is None:
            disk.machine_memory = self.kept_memory()
        if self.is_full and "full" in self.on_fault:
            disk.on_fault["full"] = self.on_fault["full"]
        return disk

    def durable_range(self, path: str, position: int, size: int) -> bytes:
        """Return the bytes of a file range on the platter: after a power cut, at the worst."""
        inode = self.inodes.get(path)
        if inode is None or not inode.is_name_durable:
            return b""
        return inode.durable[position : position + size]

    def cached_range(self, path: str, position: int, size: int) -> bytes:
        """Return the bytes of a file range in the page cache: after kill -9."""
        inode = self.inodes.get(path)
        return b"" if inode is None else bytes(inode.cache[position : position + size])

    # -- the file system ---------------------------------------------------------------------------

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """Return the entries of a directory, sorted by name."""
        if path in self.inodes:
            raise DiskError(f"cannot list {path}: Not a directory", path=path)
        prefix = path.rstrip("/") + "/"
        found = {}
        for name, inode in self.inodes.items():
            entry = name[len(prefix) :]
            if name.startswith(prefix) and "/" not in entry:
                size = len(inode.cache)
                found[entry] = FileStat(
                    name=entry, size=size, is_dir=False, modified_ms=inode.modified_ms
                )
        for name in self.dirs:
            entry = name[len(prefix) :]
            if name.startswith(prefix) and entry and "/" not in entry:
                found[entry] = FileStat(name=entry, size=0, is_dir=True, modified_ms=0)
        return [found[name] for name in sorted(found)]

    def exists(self, path: str) -> bool:
        """Whether a file or directory of this name exists."""
        return path in self.inodes or path in self.dirs

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp; nobody else may read it."""
        inode = self._inode(path)
        size, modified_ns = len(inode.cache), inode.modified_ms * 1_000_000
        return FileStamp(mode=0o600, size=size, modified_ns=modified_ns, inode=0)

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents, durably."""
        self._make_dirs(path, are_durable=True)

    def _make_dirs(self, path: str, *, are_durable: bool) -> None:
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            self.dirs.setdefault("/" + "/".join(parts[:count]), are_durable)

    def create_file(self, path: str, size: int) -> DiskFile:
        """Make and map a file of zeros."""
        self._claim(f"create {path}", size)
        self.make_dirs(path.rpartition("/")[0])
        assert path not in self.inodes, f"{path} exists"
        self.inodes[path] = Inode(mmap.mmap(-1, size), bytes(size), modified_ms=self.now_ms())
        return self.open_file(path, writable=True)

    def _claim(self, doing: str, size: int) -> None:
        if self.free_bytes() < max(size, _BLOCK_SIZE):
            raise self.full(doing)

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open a file."""
        inode = self._inode(path)
        size = len(inode.cache)
        if not writable or size == 0:
            return SimFile(path, size, None, self, inode, is_writable=False)
        if not isinstance(inode.cache, mmap.mmap):
            image = mmap.mmap(-1, size)
            image[:] = bytes(inode.cache)
            inode.cache = image
        assert not inode.mapped, f"{path} is mapped twice"
        inode.mapped += 1
        return SimFile(path, size, inode.cache, self, inode, is_writable=True)

    def open_sparse_file(
        self, path: str, size: int, *, creates: bool = True, make_dirs: bool = True
    ) -> DiskFile:
        """Open a file without a map; its name is durable once its directory is synced."""
        inode = self.inodes.get(path)
        if inode is None:
            if not creates:
                raise DiskError(f"cannot open {path}: No such file or directory", path=path)
            self.unstored[path] = None
            self._claim(f"create {path}", 0)
            folder = path.rpartition("/")[0]
            if make_dirs:
                self._make_dirs(folder, are_durable=False)
            elif folder not in self.dirs:
                raise DiskError(f"cannot open {path}: no such directory", path=path)
            inode = Inode(
                bytearray(size),
                bytes(size),
                is_name_durable=False,
                modified_ms=self.now_ms(),
                is_sparse=True,
            )
            self.inodes[path] = inode
            del self.unstored[path]
        return SimFile(path, len(inode.cache), None, self, inode, is_writable=True)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable, but not its own or those further below."""
        for name, inode in self.inodes.items():
            if _parent(name) == path:
                inode.is_name_durable = True
        for name in self.dirs:
            if _parent(name) == path:
                self.dirs[name] = True

    def read_file(self, path: str) -> bytes:
        """Return the bytes of a file."""
        self.check_read(path)
        return self._inode(path).seen()

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a file, durably."""
        self.unstored[path] = None
        self._claim(f"write {path}", len(data))
        del self.unstored[path]
        self.make_dirs(path.rpartition("/")[0])
        self.inodes[path] = Inode(bytearray(data), bytes(data), modified_ms=self.now_ms())

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.inodes.pop(path, None)

    def remove_tree(self, path: str) -> None:
        """Remove a directory."""
        under = f"{path}/"
        self.inodes = {name: i for name, i in self.inodes.items() if not name.startswith(under)}
        self.dirs = {
            name: is_durable
            for name, is_durable in self.dirs.items()
            if name != path and not name.startswith(under)
        }

    def cannot_move(self, path: str) -> None:
        """Return None: there are neither links nor mounts."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or a directory."""
        if path in self.inodes:
            self.inodes[new_path] = self.inodes.pop(path)
            return
        assert path in self.dirs, f"{path} is not there"

        def moved(name: str) -> str:
            is_inside = name == path or name.startswith(f"{path}/")
            return new_path + name[len(path) :] if is_inside else name

        self.inodes = {moved(name): inode for name, inode in self.inodes.items()}
        self.dirs = {moved(name): is_durable for name, is_durable in self.dirs.items()}

    def lock(self, path: str) -> DirectoryLock:
        """Lock a store."""
        if path in self.locked:
            raise StoreLockedError(f"{path} is held by another process", path=path)
        self.locked[path] = None
        self.inodes.setdefault(path, Inode(bytearray(b"lock"), b"lock"))
        return _SimLock(self, path)

    def hold(self, path: str) -> SimHeldName:
        """Hold a file or a directory."""
        return SimHeldName(path, self, None if path in self.dirs else self._inode(path))

    def first_lost(self, named: Sequence[NamedFile]) -> NamedFile | None:
        """Compare each with what is at its name."""
        return next((each for each in named if each.lost_name() is not None), None)

    def lost_name(self, path: str, inode: Inode | None) -> str | None:
        """Return what has happened to the name of a file, or of a directory (None)."""
        if path in self.dirs if inode is None else self.inodes.get(path) is inode:
            return None
        is_there = path in self.dirs or path in self.inodes
        return "leads to another file" if is_there else "was removed or renamed"

    def used_bytes(self) -> int:
        """Return the bytes that all files take, in whole blocks."""
        return sum(-(-len(inode.cache) // _BLOCK_SIZE) for inode in self.inodes.values()) * (
            _BLOCK_SIZE
        )

    def space(self, path: str) -> DiskSpace:  # noqa: ARG002 - there is one file system
        """Return how full the disk is."""
        used = self.used_bytes()
        return DiskSpace(
            device=0, used_ratio=min(used / self.capacity, 1.0), free_bytes=self.free_bytes()
        )

    def free_bytes(self) -> int:
        """Return the bytes that are free."""
        capacity = self.capacity if self.filled_at is None else self.filled_at
        return max(capacity - self.used_bytes(), 0)

    def _inode(self, path: str) -> Inode:
        inode = self.inodes.get(path)
        if inode is None:
            raise DiskError(f"cannot open {path}: No such file or directory", path=path)
        return inode


def _kept_dirs(dirs: dict[str, bool], keeps: Callable[[], bool]) -> dict[str, bool]:
    """Return the directories that survive a power cut; with a lost one, all below it is lost."""
    kept = {"/": True}
    for name, is_durable in dirs.items():  # parents come first
        if _parent(name) in kept and (is_durable or keeps()):
            kept[name] = True
    return kept


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"

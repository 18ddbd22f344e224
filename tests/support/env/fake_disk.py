"""A disk in memory that fails on demand, crashes, and knows what was synced; with its env.

Each file has two images: what programs see (the page cache: a map that mappers share) and what was
synced.  ``kill()`` gives the disk as the next process finds it after kill -9; ``cut_power()`` as
the next boot finds it: the synced image, or for each 512-byte sector either image, as ``choose``
says.  Directory operations are durable at once, as the real disk's are.
"""

import mmap
import time

import attrs
import trio

from hastore.env.interface import Env, FileStat
from hastore.errors import DiskError, DiskFullError, FlushFailedError, StoreLockedError

SECTOR_SIZE = 512
START_MS = 1_700_000_000_000


@attrs.define(eq=False)
class Inode:
    """A file's two images; a mapped file's page cache is the map itself."""

    cache: mmap.mmap | bytearray
    synced: bytes
    mapped: int = 0

    def view(self):
        return bytes(self.cache)


@attrs.define(eq=False)
class FakeFile:
    path: str
    size: int
    buffer: mmap.mmap | None
    disk: "FakeDisk"
    inode: Inode
    writable: bool = False
    closed: bool = False

    def pread(self, size, position):
        assert not self.closed, f"{self.path} was closed"
        self.disk.reads += 1
        return bytes(self.inode.cache[position : position + size])

    def pwrite(self, data, position):
        assert not self.closed, f"{self.path} was closed"
        end = position + len(data)
        assert self.writable, f"{self.path} was opened for reading"
        assert end <= self.size
        if self.disk.pwrite_error is not None:
            end = position + self.disk.pwrite_reaches
            self.inode.cache[position:end] = data[: end - position]
            raise self.disk.pwrite_error
        self.inode.cache[position:end] = data

    def next_data(self, position):
        return position

    def forget(self, position=0, size=0):
        assert not self.closed, f"{self.path} was closed"

    def sync(self):
        assert not self.closed, f"{self.path} was closed"
        self.disk.syncs.append(self.path)
        if self.disk.sync_error is not None:
            raise self.disk.sync_error
        if self.disk.on_sync is not None:
            self.disk.on_sync(self)
        self.inode.synced = self.inode.view()

    def unmap(self):
        if self.buffer is not None:
            image = bytearray(self.buffer[:])
            self.buffer.close()  # BufferError while somebody holds a view of it
            self.inode.mapped -= 1
            self.inode.cache = image
            self.buffer = None

    def close(self):
        if self.closed:
            return
        self.unmap()
        self.closed = True


@attrs.define(eq=False)
class FakeLock:
    disk: "FakeDisk"
    path: str

    def release(self):
        self.disk.locked.discard(self.path)


@attrs.define(eq=False)
class FakeDisk:
    inodes: dict[str, Inode] = attrs.field(factory=dict)
    dirs: set[str] = attrs.field(factory=lambda: {"/"})
    locked: set[str] = attrs.field(factory=set)
    create_error: Exception | None = None
    sync_error: Exception | None = None
    write_error: Exception | None = None
    pwrite_error: Exception | None = None
    pwrite_reaches: int = 0  # bytes that got there before the error
    on_sync: object = None
    syncs: list[str] = attrs.field(factory=list)
    changes: list[str] = attrs.field(factory=list)  # what was done to the directory tree
    used: float = 0.5
    modified: dict[str, int] = attrs.field(factory=dict)  # by path, in ms; START_MS for others
    remove_error: Exception | None = None
    reads: int = 0
    creations: int = 0  # failed ones too

    def list_dir(self, path):
        if path in self.inodes:
            raise DiskError(f"cannot list {path}: Not a directory", path=path)
        prefix = path.rstrip("/") + "/"
        found = {}
        for name, inode in self.inodes.items():
            if name.startswith(prefix) and "/" not in name[len(prefix) :]:
                entry = name[len(prefix) :]
                found[entry] = FileStat(
                    name=entry,
                    size=len(inode.cache),
                    is_dir=False,
                    modified_ms=self.modified.get(name, START_MS),
                )
        for name in self.dirs:
            if name.startswith(prefix) and name != prefix and "/" not in name[len(prefix) :]:
                entry = name[len(prefix) :]
                found[entry] = FileStat(name=entry, size=0, is_dir=True, modified_ms=START_MS)
        return [found[name] for name in sorted(found)]

    def exists(self, path):
        return path in self.inodes or path in self.dirs

    def make_dirs(self, path):
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            self.dirs.add("/" + "/".join(parts[:count]))

    def create_file(self, path, size):
        self.creations += 1
        if self.create_error is not None:
            raise self.create_error
        assert path not in self.inodes, f"{path} exists"
        self.changes.append(f"create {path}")
        self.inodes[path] = Inode(mmap.mmap(-1, size), bytes(size))
        return self.open_file(path, writable=True)

    def open_file(self, path, *, writable):
        inode = self.inodes.get(path)
        if inode is None:
            raise DiskError(f"cannot open {path}: No such file or directory", path=path)
        size = len(inode.cache)
        if not writable or size == 0:
            return FakeFile(path, size, None, self, inode)
        if not isinstance(inode.cache, mmap.mmap):
            image = mmap.mmap(-1, size)
            image[:] = bytes(inode.cache)
            inode.cache = image
        assert not inode.mapped, f"{path} is mapped twice"
        inode.mapped += 1
        return FakeFile(path, size, inode.cache, self, inode, writable=True)

    def open_sparse_file(self, path, size):
        self.make_dirs(path.rpartition("/")[0])
        inode = self.inodes.get(path)
        if inode is None:
            self.changes.append(f"create {path}")
            inode = self.inodes[path] = Inode(bytearray(size), bytes(size))
        return FakeFile(path, len(inode.cache), None, self, inode, writable=True)

    def sync_dir(self, path):
        self.syncs.append(path)

    def read_file(self, path):
        return self.inodes[path].view()

    def write_file(self, path, data):
        if self.write_error is not None:
            raise self.write_error
        self.changes.append(f"write {path}")
        self.inodes[path] = Inode(bytearray(data), bytes(data))

    def remove(self, path):
        if self.remove_error is not None:
            raise self.remove_error
        if self.inodes.pop(path, None) is not None:
            self.changes.append(f"remove {path}")

    def remove_tree(self, path):
        if self.remove_error is not None:
            raise self.remove_error
        self.changes.append(f"remove {path}")
        under = f"{path}/"
        self.inodes = {name: i for name, i in self.inodes.items() if not name.startswith(under)}
        self.dirs = {name for name in self.dirs if name != path and not name.startswith(under)}

    def rename(self, path, new_path):
        self.changes.append(f"rename {path}")
        if path in self.inodes:
            self.inodes[new_path] = self.inodes.pop(path)
            return
        assert path in self.dirs, f"{path} is not there"
        assert not self.exists(new_path), f"{new_path} exists"

        def moved(name):
            inside = name == path or name.startswith(f"{path}/")
            return new_path + name[len(path) :] if inside else name

        self.inodes = {moved(name): inode for name, inode in self.inodes.items()}
        self.dirs = {moved(name) for name in self.dirs}

    def lock(self, path):
        if path in self.locked:
            raise StoreLockedError(f"{path} is held by another process", path=path)
        self.locked.add(path)
        self.inodes.setdefault(path, Inode(bytearray(b"lock"), b"lock"))
        return FakeLock(self, path)

    def free_bytes(self, path):
        return 2**40

    def used_ratio(self, path):
        return self.used

    # -- tests -------------------------------------------------------------------------------------

    def files(self, under="/d/commitlog/"):
        """What programs see in each file of a directory, by name."""
        return {
            path.removeprefix(under): inode.view()
            for path, inode in sorted(self.inodes.items())
            if path.startswith(under)
        }

    def put(self, path, data):
        """Place a file as if it had always been there."""
        self.make_dirs(path.rpartition("/")[0])
        self.inodes[path] = Inode(bytearray(data), bytes(data))

    def kill(self):
        """The disk after kill -9: the page cache stays, nothing is open or locked."""
        return self._after(lambda inode: inode.view())

    def cut_power(self, choose=lambda: False):
        """The disk after a power cut; ``choose()`` true keeps an unsynced sector."""

        def image(inode):
            seen, synced = inode.view(), inode.synced
            kept = bytearray(synced)
            for start in range(0, len(seen), SECTOR_SIZE):
                sector = seen[start : start + SECTOR_SIZE]
                if sector != synced[start : start + SECTOR_SIZE] and choose():
                    kept[start : start + SECTOR_SIZE] = sector
            return bytes(kept)

        return self._after(image)

    def _after(self, image):
        inodes = {}
        for path, inode in self.inodes.items():
            data = image(inode)
            inodes[path] = Inode(bytearray(data), data)
        return FakeDisk(inodes, set(self.dirs))


@attrs.define(eq=False)
class FakeMemory:
    """Does what it is told, unless ``refusal`` says why not; ``calls`` names each call."""

    refusal: str | None = None
    populate_refusal: str | None = None
    calls: list[tuple] = attrs.field(factory=list)
    locked: list[mmap.mmap] = attrs.field(factory=list)

    def anonymous(self, size):
        self.calls.append(("anonymous", size))
        return mmap.mmap(-1, size)

    def lock(self, buffer):
        self.calls.append(("lock", len(buffer)))
        if self.refusal is None:
            self.locked.append(buffer)
        return self.refusal

    def unlock(self, buffer):
        self.calls.append(("unlock", len(buffer)))
        self.locked.remove(buffer)

    def will_need(self, buffer):
        self.calls.append(("will_need", len(buffer)))
        return self.refusal

    def populate(self, buffer, position, size):
        self.calls.append(("populate", position, size))
        return self.populate_refusal


@attrs.define(eq=False)
class FakeClock:
    ms: int = START_MS

    def now_s(self):
        return self.ms / 1000

    def now_ms(self):
        return self.ms

    def local_name(self, ms):
        seconds, rest = divmod(ms, 1000)  # a machine that lives in UTC
        return f"{time.strftime('%Y%m%d%H%M%S', time.gmtime(seconds))}{rest:03d}"


@attrs.define(eq=False)
class FakeOffload:
    """Runs a call after one pass of the loop; ``hang`` keeps it from starting until ``go_on``."""

    gate: trio.Event | None = None
    running: int = 0
    runs: int = 0

    async def run(self, call):
        self.running += 1
        self.runs += 1
        try:
            with trio.CancelScope(shield=True):  # as a worker thread, it is not cancelled
                if self.gate is not None:
                    await self.gate.wait()
                await trio.lowlevel.checkpoint()
            return call()
        finally:
            self.running -= 1

    def hang(self):
        self.gate = trio.Event()

    def go_on(self):
        self.gate.set()
        self.gate = None


def fake_env(disk=None, clock=None, offload=None, memory=None):
    """An environment in memory."""
    return Env(
        disk=disk or FakeDisk(),
        memory=memory or FakeMemory(),
        wall_clock=clock or FakeClock(),
        randomness=None,
        offload=offload or FakeOffload(),
        send_file=None,
        send_now=None,
        process_id=4711,
    )


def disk_full(path="/d"):
    return DiskFullError(f"no space to create {path}: No space left on device", path=path)


def sync_failed(path="/d"):
    return FlushFailedError(f"fdatasync of {path} failed: Input/output error", path=path)

"""A disk that fails, counts and waits as a test says; another disk does the work.

    the code under test ──► ScriptedDisk: counts, hooks, faults ──► RealDisk, or one in memory

``fail`` makes calls fail; ``before`` and ``after`` run a function of the test around them, which
may change the disk, wait, or raise.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hastore.errors import DiskError, DiskFullError, FlushFailedError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    from hastore.env.interface import (
        DirectoryLock,
        Disk,
        DiskFile,
        DiskSpace,
        FileStamp,
        FileStat,
        HeldName,
        NamedFile,
    )

T = TypeVar("T")


def disk_full(path: str = "/d") -> DiskFullError:
    """Return the error of a full disk."""
    return DiskFullError(f"no space to create {path}: No space left on device", path=path)


def sync_failed(path: str = "/d") -> FlushFailedError:
    """Return the error of a failed fdatasync."""
    return FlushFailedError(f"fdatasync of {path} failed: Input/output error", path=path)


def read_failed(path: str) -> DiskError:
    """Return the error of a bad sector."""
    return DiskError(f"cannot read {path}: Input/output error", path=path)


@attrs.frozen
class Operation:
    """A call, before or after it is made; ``name`` is the method's."""

    name: str
    path: str
    position: int = 0
    size: int = 0
    is_change: bool = False  # whether it changes what a kill leaves
    is_writable: bool = False  # of open_file
    write_part: Callable[[int], None] | None = None  # of a pwrite: writes its first bytes

    def reach(self, size: int) -> None:
        """Write the first ``size`` bytes of a pwrite to the disk."""
        if self.write_part is not None:
            self.write_part(size)


@attrs.define(eq=False)
class Hook:
    """A test's action around calls of one name, on paths that contain ``path``."""

    name: str
    path: str
    act: Callable[[Operation], object]

    def __call__(self, operation: Operation) -> None:
        """Act if the call matches."""
        if self.name == operation.name and self.path in operation.path:
            self.act(operation)


@attrs.define(eq=False)
class Fault:
    """The error of the next ``times`` calls (None: of all), except the first ``skip``."""

    error: BaseException | Callable[[str], BaseException]
    skip: int
    times: int | None
    reaches: int

    def __call__(self, operation: Operation) -> None:
        """Raise the error if this call is to fail."""
        if self.skip > 0:
            self.skip -= 1
        elif self.times != 0:
            if self.times is not None:
                self.times -= 1
            operation.reach(self.reaches)
            if isinstance(self.error, BaseException):
                raise self.error
            raise self.error(operation.path)


@attrs.define(eq=False)
class ScriptedDisk:
    """Another disk, ``disk``, with a test's faults and hooks around it, and counters."""

    disk: Disk
    counts: Counter[str] = attrs.field(factory=Counter)  # calls by name; failed ones too
    bytes_read: Counter[str] = attrs.field(factory=Counter)  # by path
    syncs: list[str] = attrs.field(factory=list)  # paths of files and directories; failed ones too
    changes: list[str] = attrs.field(factory=list)  # changes of the directory tree
    failures: int = 0  # calls that ``fail`` made fail
    open_files: set[ScriptedFile] = attrs.field(factory=set)
    used: float | None = None  # the reported used ratio; None: the other disk's
    _faults: list[Hook] = attrs.field(factory=list)
    _before: list[Hook] = attrs.field(factory=list)
    _after: list[Hook] = attrs.field(factory=list)

    # -- the script --------------------------------------------------------------------------------

    def fail(
        self,
        name: str,
        error: BaseException | Callable[[str], BaseException],
        *,
        path: str = "",
        skip: int = 0,
        times: int | None = None,
        reaches: int = 0,
    ) -> None:
        """Fail calls of ``name`` with ``error`` (or its result for the path) until ``heal``.

        Only calls on paths that contain ``path`` count: the first ``skip`` of them succeed, and the
        next ``times`` fail (None: all).  A pwrite that fails still writes ``reaches`` bytes.
        """
        self._faults.append(Hook(name, path, Fault(error, skip, times, reaches)))

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()

    def before(self, name: str, act: Callable[[Operation], object], *, path: str = "") -> None:
        """Run ``act`` before each call of ``name``; the call raises what ``act`` raises."""
        self._before.append(Hook(name, path, act))

    def after(self, name: str, act: Callable[[Operation], object], *, path: str = "") -> None:
        """Run ``act`` after each successful call of ``name``; the call raises what it raises."""
        self._after.append(Hook(name, path, act))

    @property
    def reads(self) -> int:
        """The number of reads of a part of a file."""
        return self.counts["pread"]

    def check(self, operation: Operation) -> None:
        """Raise the error that this call must raise, if any."""
        try:
            for fault in self._faults:
                fault(operation)
        except BaseException:
            self.failures += 1
            raise
        for hook in (*self._before,):
            hook(operation)

    def call(self, operation: Operation, act: Callable[[], T]) -> T:
        """Make a call, with its counters, faults and hooks."""
        self.counts[operation.name] += 1
        if operation.name in {"sync", "sync_dir"}:
            self.syncs.append(operation.path)
        self.check(operation)
        done = act()
        for hook in (*self._after,):
            hook(operation)
        return done

    def _change(self, name: str, verb: str, path: str, act: Callable[[], T]) -> T:
        def change() -> T:
            self.changes.append(f"{verb} {path}")
            return act()

        return self.call(Operation(name, path, is_change=True), change)

    # -- Disk --------------------------------------------------------------------------------------

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """List a directory."""
        return self.call(Operation("list_dir", path), lambda: self.disk.list_dir(path))

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self.disk.exists(path)

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp."""
        return self.call(Operation("stamp", path), lambda: self.disk.stamp(path))

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents."""
        operation = Operation("make_dirs", path, is_change=not self.exists(path))
        self.call(operation, lambda: self.disk.make_dirs(path))

    def create_file(self, path: str, size: int) -> DiskFile:
        """Create and map a file."""
        file = self._change(
            "create_file", "create", path, lambda: self.disk.create_file(path, size)
        )
        return self._scripted(file)

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open a file."""
        operation = Operation("open_file", path, is_writable=writable)
        return self._scripted(
            self.call(operation, lambda: self.disk.open_file(path, writable=writable))
        )

    def open_sparse_file(
        self, path: str, size: int, *, creates: bool = True, make_dirs: bool = True
    ) -> DiskFile:
        """Open a file without a map; create it if it does not exist."""

        def open_it() -> DiskFile:
            return self.disk.open_sparse_file(path, size, creates=creates, make_dirs=make_dirs)

        if self.exists(path):
            file = self.call(Operation("open_sparse_file", path), open_it)
        else:
            file = self._change("open_sparse_file", "create", path, open_it)
        return self._scripted(file)

    def _scripted(self, file: DiskFile) -> DiskFile:
        scripted = ScriptedFile(file.path, file.size, file.buffer, file, self)
        self.open_files.add(scripted)
        return scripted

    def sync_dir(self, path: str) -> None:
        """Sync a directory."""
        self.call(Operation("sync_dir", path, is_change=True), lambda: self.disk.sync_dir(path))

    def read_file(self, path: str) -> bytes:
        """Read a file whole."""
        return self.call(Operation("read_file", path), lambda: self.disk.read_file(path))

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a file."""
        self._change("write_file", "write", path, lambda: self.disk.write_file(path, data))

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self.exists(path):
            self._change("remove", "remove", path, lambda: self.disk.remove(path))
        else:
            self.call(Operation("remove", path), lambda: self.disk.remove(path))

    def remove_tree(self, path: str) -> None:
        """Remove a directory."""
        self._change("remove_tree", "remove", path, lambda: self.disk.remove_tree(path))

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or a directory."""
        self._change("rename", "rename", path, lambda: self.disk.rename(path, new_path))

    def cannot_move(self, path: str) -> str | None:
        """Return what keeps a directory where it is."""
        return self.disk.cannot_move(path)

    def lock(self, path: str) -> DirectoryLock:
        """Lock a store."""
        return self.disk.lock(path)

    def hold(self, path: str) -> HeldName:
        """Hold a name."""
        return self.disk.hold(path)

    def first_lost(self, named: Sequence[NamedFile]) -> NamedFile | None:
        """Compare each name with what it leads to."""
        return self.disk.first_lost(named)

    def space(self, path: str) -> DiskSpace:
        """Return how full the disk is; ``used``, if set, is its used ratio."""
        space = self.call(Operation("space", path), lambda: self.disk.space(path))
        return space if self.used is None else attrs.evolve(space, used_ratio=self.used)


@attrs.define(eq=False)
class ScriptedFile:
    """An open file of a ``ScriptedDisk``."""

    path: str
    size: int
    buffer: mmap.mmap | None
    file: DiskFile
    disk: ScriptedDisk
    is_closed: bool = False

    @property
    def name_check(self) -> bytes:
        """The file's."""
        return self.file.name_check

    def lost_name(self) -> str | None:
        """Return what has happened to the file's name."""
        return self.file.lost_name()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.file.fileno()

    def pread(self, size: int, position: int) -> bytes:
        """Read a part."""
        data = self._call("pread", position, size, lambda: self.file.pread(size, position))
        self.disk.bytes_read[self.path] += len(data)
        return data

    def read_now(self, buffer: memoryview, position: int) -> int:
        """Read a part; a fault of ``pread`` is one of this, too."""
        read = lambda: self.file.read_now(buffer, position)  # noqa: E731
        count = self._call("pread", position, len(buffer), read)
        self.disk.bytes_read[self.path] += count
        return count

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write a part, or as much of it as a fault allows."""

        def write(size: int) -> None:
            self.file.pwrite(memoryview(data)[:size], position)

        size = len(data)
        self._call("pwrite", position, size, lambda: write(size), is_change=True, write_part=write)

    def make_pages(self, position: int, size: int) -> None:
        """Write zeros."""
        make = lambda: self.file.make_pages(position, size)  # noqa: E731
        self._call("make_pages", position, size, make)

    def next_data(self, position: int) -> int:
        """Return the next position that may have data."""
        return self.file.next_data(position)

    def forget(self, position: int = 0, size: int = 0) -> None:
        """Drop cached pages, so that they are read again."""
        self._call("forget", position, size, lambda: self.file.forget(position, size))

    def sync(self) -> None:
        """Sync the file."""
        self._call("sync", 0, self.size, self.file.sync, is_change=True)

    def sync_descriptor(self) -> int | None:
        """Return None: ``sync`` also counts and fails."""
        return None

    def _call(self, name: str, position: int, size: int, act: Callable[[], T], **options: Any) -> T:
        assert not self.is_closed, f"{self.path} was closed"
        return self.disk.call(Operation(name, self.path, position, size, **options), act)

    def unmap(self) -> None:
        """Remove the map."""
        self.file.unmap()
        self.buffer = None

    def close(self) -> None:
        """Unmap and close."""
        self.file.close()
        self.buffer = None
        self.is_closed = True
        self.disk.open_files.discard(self)

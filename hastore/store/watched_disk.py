"""A disk that knows which files and directories a running node uses, and checks their names.

::

    commitlog/  consumequeue/  index/  config/      the directories, and each open file in the first
                                                    three: the name must lead to the open file
    config/*.json                                   the file that was read or written last
    lock  abort  checkpoint  identity.json  epochFileCheckpoint  sync_state_set.json      likewise

A node changes these files itself: it writes tables beside the old ones and renames them, deletes
expired files, cuts its log.  All of that goes through this disk, which forgets a name before such a
change and takes the new file after it.  So whatever else a name leads to was done by someone else.
Files that operators may remove while the node runs (``trimmed/``, ``refused_slaves.json``, backups)
are not watched.

``check`` looks at all names; a change of a file looks at its own name and directory first, so that
it neither writes into a directory that is not this node's nor heals a loss unseen.

Invariant: once a file is found lost, ``check`` raises the same FileLostError each time.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.env.name_check import GONE, lost_error
from hastore.errors import DiskError
from hastore.store.disk_usage import CONFIG_DIR
from hastore.store.epoch_file import EPOCH_FILE, decode_epochs
from hastore.store.index.service import INDEX_DIR
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.node_identity import IDENTITY_FILE
from hastore.store.queue.directory import CONSUME_QUEUE_DIR
from hastore.store.recovery.store_checkpoint import CHECKPOINT_FILE
from hastore.store.store_lock import ABORT_FILE, LOCK_FILE
from hastore.store.sync_state_file import SYNC_STATE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    from hastore.errors import FileLostError

_OPEN_FILE_DIRS: Final = frozenset({COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR})
_DIRS: Final = frozenset({"", CONFIG_DIR, *_OPEN_FILE_DIRS})
_FILES: Final = frozenset(
    {ABORT_FILE, CHECKPOINT_FILE, EPOCH_FILE, IDENTITY_FILE, LOCK_FILE, SYNC_STATE_FILE}
)
_TABLE_SUFFIX: Final = ".json"


@final
@attrs.define(eq=False)
class WatchedDisk:
    """``disk``, with the names of the store in ``root`` watched.  Its calls may run in threads."""

    disk: Disk
    root: str
    lost: FileLostError | None = attrs.field(default=None, init=False)  # the first that was found
    _open: dict[str, list[DiskFile]] = attrs.field(factory=dict, init=False)  # by path
    _held: dict[str, HeldName] = attrs.field(factory=dict, init=False)  # by path
    _in_change: set[str] = attrs.field(factory=set, init=False)  # paths that change just now
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)  # of the three

    # -- the names -------------------------------------------------------------------------------

    def check(self) -> None:
        """Look at all names; blocks.  Raises FileLostError if one is lost."""
        if self.lost is None:
            named = self._watched()
            while (found := self.disk.first_lost(named)) is not None:
                self._raise_if_lost(found)
                named = named[named.index(found) + 1 :]
        if self.lost is not None:
            raise self.lost

    def _watched(self) -> list[NamedFile]:
        """Return the directories, the single files and the open files, without the closed ones."""
        with self._lock:
            for path, files in list(self._open.items()):
                files[:] = [file for file in files if not file.is_closed]
                if not files:
                    del self._open[path]
            opened = [file for files in self._open.values() for file in files]
            return [*self._held.values(), *opened]

    def _raise_if_lost(self, named: NamedFile) -> None:
        """Raise FileLostError if a name is lost and the node itself has not just changed it."""
        what = named.lost_name()
        with self._lock:
            is_watched = (
                named in self._open.get(named.path, ()) or self._held.get(named.path) is named
            )
        if what is not None and is_watched:
            self.lost = self.lost or lost_error(named.path, what)
            raise self.lost

    def _check_path(self, path: str) -> None:
        """Check a name that is about to be changed, and the directories above it."""
        self._check_names(*_parents(path), path)

    def _check_names(self, *paths: str) -> None:
        for each in paths:
            with self._lock:
                held = self._held.get(each)
                named: list[NamedFile] = [*self._open.get(each, ())]
            for one in named if held is None else [held, *named]:
                self._raise_if_lost(one)

    @contextlib.contextmanager
    def _changing(self, path: str) -> Iterator[None]:
        """Check a name, and do not watch it during the block; then watch what it leads to."""
        self._check_path(path)
        self._forget(path)
        try:
            yield
        finally:
            with self._lock:
                self._in_change.discard(path)
            self._take_name(path)

    @contextlib.contextmanager
    def _removing(self, path: str) -> Iterator[None]:
        """Check the directories above a name, and watch it no more, unless the block fails.

        The name itself may be lost: it was to go.
        """
        self._check_names(*_parents(path))
        files, names = self._forget(path)
        try:
            yield
        except BaseException:
            with self._lock:
                self._in_change.discard(path)
            for file in files:
                self._take_file(file)
            for name in names:
                self._take_name(name)
            raise
        with self._lock:
            self._in_change.discard(path)

    def _forget(self, path: str) -> tuple[list[DiskFile], list[str]]:
        """Stop watching a name, which is about to change, and all names below it.

        Return the open files and the names that were watched.
        """
        below = f"{path}/"
        with self._lock:
            self._in_change.add(path)
            opened = [each for each in self._open if each == path or each.startswith(below)]
            held = [each for each in self._held if each == path or each.startswith(below)]
            files = [file for name in opened for file in self._open.pop(name)]
            for name in held:
                self._held.pop(name).close()
        return files, held

    def _take_file(self, file: DiskFile) -> DiskFile:
        """Watch an open file."""
        if self._name_in_store(file.path).partition("/")[0] in _OPEN_FILE_DIRS:
            with self._lock:
                self._open.setdefault(file.path, []).append(file)
        return file

    def _take_name(self, path: str) -> None:
        """Watch what is at a name now, if it is one of the directories or single files.

        If it cannot be held (no descriptor is left), it is not watched until it changes again.
        """
        name = self._name_in_store(path)
        is_table = name.startswith(f"{CONFIG_DIR}/") and name.endswith(_TABLE_SUFFIX)
        if name not in _DIRS and name not in _FILES and not is_table:
            return
        with self._lock, contextlib.suppress(DiskError):
            if path not in self._held and path not in self._in_change:
                self._held[path] = self.disk.hold(path)

    def _name_in_store(self, path: str) -> str:
        """Return a path below the root; ``/`` for any other."""
        below = f"{self.root}/"
        if path == self.root:
            return ""
        return path.removeprefix(below) if path.startswith(below) else "/"

    def close(self) -> None:
        """Release all names; the open files are their users'."""
        self._forget(self.root)

    # -- changes ---------------------------------------------------------------------------------

    def make_dirs(self, path: str) -> None:
        """Make a directory; one that this node had may not be made again."""
        self._check_path(path)
        self.disk.make_dirs(path)
        for each in (*_parents(path), path):
            self._take_name(each)

    def create_file(self, path: str, size: int) -> DiskFile:
        """Create a file."""
        self._check_path(path)
        return self._take_file(self.disk.create_file(path, size))

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open a file."""
        return self._take_file(self.disk.open_file(path, writable=writable))

    def open_sparse_file(
        self, path: str, size: int, *, creates: bool = True, make_dirs: bool = True
    ) -> DiskFile:
        """Open a sparse file; one that must exist and does not is lost."""
        self._check_path(path)
        try:
            file = self.disk.open_sparse_file(path, size, creates=creates, make_dirs=make_dirs)
        except DiskError as error:
            if not creates and self._is_absent(path, error):
                self.lost = self.lost or lost_error(path, "was removed or renamed")
                raise self.lost from None
            raise
        return self._take_file(file)

    def _is_absent(self, path: str, error: DiskError) -> bool:
        """Return whether a file could not be opened because it is not there."""
        cause = error.__cause__
        if isinstance(cause, OSError):
            return cause.errno in GONE
        return not self.disk.exists(path)

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file."""
        with self._changing(path):
            self.disk.write_file(path, data)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with self._removing(path):
            self.disk.remove(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory likewise."""
        with self._removing(path):
            self.disk.remove_tree(path)

    def rename(self, path: str, new_path: str) -> None:
        """Rename."""
        with self._changing(path), self._changing(new_path):
            self.disk.rename(path, new_path)

    def lock(self, path: str) -> DirectoryLock:
        """Take a lock, and watch its file."""
        with self._changing(path):
            return self.disk.lock(path)

    # -- the rest --------------------------------------------------------------------------------

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """List a directory, and watch it: a start need not find a file in it to open."""
        entries = self.disk.list_dir(path)
        self._take_name(path)
        return entries

    def cannot_move(self, path: str) -> str | None:
        """Return what keeps a directory where it is."""
        return self.disk.cannot_move(path)

    def exists(self, path: str) -> bool:
        """Whether a path exists."""
        return self.disk.exists(path)

    def stamp(self, path: str) -> FileStamp:
        """Return a file's stamp."""
        return self.disk.stamp(path)

    def sync_dir(self, path: str) -> None:
        """Sync a directory."""
        self._check_path(path)
        self.disk.sync_dir(path)

    def read_file(self, path: str) -> bytes:
        """Read a small file, and watch it.

        A set that this node has not written may be damaged; operators remove it while nodes run.
        They replace damaged epochs, too.
        """
        data = self.disk.read_file(path)
        name = self._name_in_store(path)
        is_damaged = name == EPOCH_FILE and isinstance(decode_epochs(data), str)
        if name != SYNC_STATE_FILE and not is_damaged:
            self._take_name(path)
        return data

    def hold(self, path: str) -> HeldName:
        """Hold a name."""
        return self.disk.hold(path)

    def first_lost(self, named: Sequence[NamedFile]) -> NamedFile | None:
        """Compare names."""
        return self.disk.first_lost(named)

    def space(self, path: str) -> DiskSpace:
        """Return how full the file system is."""
        return self.disk.space(path)


def _parents(path: str) -> list[str]:
    """Return the directories above a path, the outermost first."""
    found = []
    while path := path.rpartition("/")[0]:
        found.append(path)
    return found[::-1]

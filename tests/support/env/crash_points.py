"""A disk on which the process dies at its n-th operation, and what it leaves is found again."""

import attrs

from tests.support.env.fake_disk import FakeDisk, FakeFile


class Killed(BaseException):
    """The process is gone; whatever it still tries has no effect."""


@attrs.define(eq=False)
class DyingFile(FakeFile):
    def pwrite(self, data, position):
        def in_part(count):
            FakeFile.pwrite(self, bytes(data)[:count], position)

        self.disk.step(f"pwrite {self.path} {position}", lambda: in_part(len(data)), in_part)

    def sync(self):
        self.disk.step(f"sync {self.path}", lambda: FakeFile.sync(self))


@attrs.define(eq=False)
class DyingDisk(FakeDisk):
    """Dies before operation number ``dies_at`` (from 0); of a write ``bytes_written`` get there."""

    dies_at: int | None = None
    bytes_written: int = 0
    operations: list[str] = attrs.field(factory=list)
    dead: bool = False

    @classmethod
    def of(cls, disk, dies_at=None, bytes_written=0):
        """A copy of a disk as it is after a kill."""
        after = disk.kill()
        return cls(after.inodes, after.dirs, dies_at=dies_at, bytes_written=bytes_written)

    def step(self, name, act, in_part=None):
        if self.dead:
            raise Killed(name)
        if len(self.operations) == self.dies_at:
            self.dead = True
            if in_part is not None:
                in_part(self.bytes_written)
            raise Killed(name)
        self.operations.append(name)
        return act()

    def open_file(self, path, *, writable):
        return of_class(DyingFile, super().open_file(path, writable=writable))

    def open_sparse_file(self, path, size):
        if path in self.inodes:
            return of_class(DyingFile, super().open_sparse_file(path, size))
        return self.step(
            f"make {path}", lambda: of_class(DyingFile, FakeDisk.open_sparse_file(self, path, size))
        )

    def create_file(self, path, size):
        return self.step(f"create {path}", lambda: FakeDisk.create_file(self, path, size))

    def make_dirs(self, path):
        if path not in self.dirs:
            self.step(f"mkdir {path}", lambda: FakeDisk.make_dirs(self, path))

    def sync_dir(self, path):
        self.step(f"sync {path}", lambda: FakeDisk.sync_dir(self, path))

    def write_file(self, path, data):
        self.step(f"write {path}", lambda: FakeDisk.write_file(self, path, data))

    def remove(self, path):
        self.step(f"remove {path}", lambda: FakeDisk.remove(self, path))

    def rename(self, path, new_path):
        self.step(f"rename {path}", lambda: FakeDisk.rename(self, path, new_path))


def of_class(kind, file):
    """A file of the fake disk as one that behaves otherwise."""
    return kind(**{field.name: getattr(file, field.name) for field in attrs.fields(FakeFile)})

"""A disk on which the process dies at its n-th change; a copy shows what it leaves."""

from __future__ import annotations

from typing import Self

import attrs

from hastore.errors import DiskError, DiskFullError
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import Operation


class Killed(BaseException):
    """The process is gone; its further calls have no effect."""


@attrs.define(eq=False)
class DyingDisk(FakeDisk):
    """Dies before change ``dies_at`` (from 0), or after ``bytes_written`` bytes of a write."""

    dies_at: int | None = None
    bytes_written: int = 0
    operations: list[str] = attrs.field(factory=list)
    dead: bool = False

    @classmethod
    def of(cls, disk: FakeDisk, dies_at: int | None = None, bytes_written: int = 0) -> Self:
        """Return a copy of a disk, as it is after a kill."""
        return cls(disk=disk.kill().disk, dies_at=dies_at, bytes_written=bytes_written)

    def check(self, operation: Operation) -> None:
        """Die, if this is the change to die at."""
        super().check(operation)
        if not operation.is_change:
            return
        name = f"{operation.name} {operation.path} {operation.position}"
        if self.dead:
            raise Killed(name)
        if len(self.operations) == self.dies_at:
            self.stop_at(operation, name)
        self.operations.append(name)

    def stop_at(self, operation: Operation, name: str) -> None:
        """Kill the process in the middle of this operation."""
        self.dead = True
        operation.reach(self.bytes_written)
        raise Killed(name)


@attrs.define(eq=False)
class RefusingDisk(DyingDisk):
    """Fails one operation with an error, and continues."""

    error: type[DiskError] = DiskFullError

    def stop_at(self, operation: Operation, name: str) -> None:
        """Fail in the middle of this operation."""
        self.operations.append(name)
        operation.reach(self.bytes_written)
        raise self.error(f"cannot {name}: refused", path=operation.path)

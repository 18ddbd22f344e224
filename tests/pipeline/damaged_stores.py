"""Copies of stores with one kind of damage each; a seed decides where it is."""

import os
import random
import shutil
import subprocess
from pathlib import Path


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store as sparse, writable files, and return the copy's directory."""
    cp = shutil.which("cp")
    assert cp is not None
    subprocess.run([cp, "-r", "--sparse=always", "--", source, target], check=True)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def write_at(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, mask: int) -> None:
    """Flip those bits of one byte that are set in ``mask``."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
    write_at(path, position, bytes([byte ^ mask]))


def written(path: Path) -> int:
    """Return the number of bytes up to the last one that is not zero."""
    return len(path.read_bytes().rstrip(b"\0"))


class Damager:
    """Damages stores; each method ``do_…`` is one kind of damage."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def names(self) -> list[str]:
        return sorted(name[3:] for name in dir(self) if name.startswith("do_"))

    def damage(self, store: Path, how: str) -> None:
        getattr(self, f"do_{how}")(store)

    def _flip(self, path: Path) -> None:
        flip(path, self._random.randrange(written(path)), self._random.randrange(1, 256))

    def _segment(self, store: Path) -> Path:
        files = sorted((store / "commitlog").iterdir())
        return self._random.choice([file for file in files if written(file) > 5_000])

    def _queue(self, store: Path, *, units: int = 1) -> Path:
        files = sorted(p for p in (store / "consumequeue").rglob("*") if p.is_file())
        return self._random.choice([file for file in files if written(file) > (units - 1) * 20])

    def do_log_byte(self, store: Path) -> None:
        self._flip(self._segment(store))

    def do_log_bytes(self, store: Path) -> None:
        for _ in range(4):
            self._flip(self._segment(store))

    def do_log_hole(self, store: Path) -> None:
        segment = self._segment(store)
        position = self._random.randrange(written(segment) - 600) // 512 * 512
        write_at(segment, position, bytes(512))

    def do_log_tail(self, store: Path) -> None:
        files = sorted((store / "commitlog").iterdir())
        segment = [file for file in files if written(file) > 5_000][-1]
        size = self._random.randrange(1, 3_000)
        write_at(segment, written(segment) - size, bytes(size))

    def do_log_file_lost(self, store: Path) -> None:
        files = sorted((store / "commitlog").iterdir())
        files[self._random.choice([0, 2, 3]) if len(files) > 4 else 0].unlink()
        if len(files) == 1:
            shutil.copyfile(store / "checkpoint", store / "checkpoint.bak")
            files[0].write_bytes(bytes(65_536))

    def do_log_file_cut(self, store: Path) -> None:
        os.truncate(self._segment(store), 65_536 - 512)

    def do_filler(self, store: Path) -> None:
        flip(min((store / "commitlog").iterdir()), 65_535, 1)

    def do_unit_byte(self, store: Path) -> None:
        self._flip(self._queue(store))

    def do_units_gone(self, store: Path) -> None:
        queue = self._queue(store, units=5)
        write_at(queue, 20 * self._random.randrange(4), bytes(20))

    def do_units_behind(self, store: Path) -> None:
        """Remove the last units, which a killed node has not written."""
        (store / "abort").touch()
        queue = self._queue(store, units=5)
        write_at(queue, -(-written(queue) // 20) * 20 - 40, bytes(40))

    def do_queue_file_lost(self, store: Path) -> None:
        self._queue(store).unlink()

    def do_queue_file_cut(self, store: Path) -> None:
        os.truncate(self._queue(store), 480)

    def do_index_byte(self, store: Path) -> None:
        self._flip(self._random.choice(sorted((store / "index").iterdir())))

    def do_index_slots(self, store: Path) -> None:
        write_at(min((store / "index").iterdir()), 40, bytes(200))

    def do_index_file_lost(self, store: Path) -> None:
        self._random.choice(sorted((store / "index").iterdir())).unlink()

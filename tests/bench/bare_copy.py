"""The bare loops of catch-up: DIR LOG_DIR BYTES [pwrite].

A child sends the log's files with sendfile in calls of 1 MiB; this process receives into one 4 MiB
buffer and copies from it into maps of fresh, allocated files, or with ``pwrite`` writes it to them.
Prints {"bytes", "seconds", "rss_anon_mib"}.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
import time
from pathlib import Path

from tests.bench.nodes import anonymous_mib

SEND_SIZE = 1024 * 1024
BUFFER_SIZE = 4 * 1024 * 1024


def send(address: tuple[str, int], log_dir: Path, size: int) -> None:
    """Send ``size`` bytes of the files."""
    with socket.create_connection(address) as sock:
        for path in _files(log_dir):
            with path.open("rb") as file:
                position, end = 0, min(path.stat().st_size, size)
                while position < end:
                    position += os.sendfile(
                        sock.fileno(), file.fileno(), position, min(SEND_SIZE, end - position)
                    )
                size -= end
            if not size:
                return


def receive(path: Path, log_dir: Path, size: int, *, by_pwrite: bool = False) -> dict[str, float]:
    """Receive ``size`` bytes into files that are allocated and mapped before the clock starts."""
    files = [_make_file(path / source.name, source.stat().st_size) for source in _files(log_dir)]
    take = _write_file if by_pwrite else _copy_file
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if os.fork() == 0:
            send(listener.getsockname(), log_dir, size)
            os._exit(0)
        sock, _ = listener.accept()
    with sock:
        buffer = memoryview(bytearray(BUFFER_SIZE))
        left = size
        began = time.perf_counter()
        for descriptor, mapped in files:
            wanted = min(len(mapped), left)
            take(sock, buffer, descriptor, mapped, wanted)
            left -= wanted
        seconds = time.perf_counter() - began
    os.wait()
    return {"bytes": size, "seconds": seconds, "rss_anon_mib": anonymous_mib(os.getpid())}


def _copy_file(
    sock: socket.socket, buffer: memoryview, _descriptor: int, mapped: mmap.mmap, wanted: int
) -> None:
    with memoryview(mapped) as view:
        position = 0
        while position < wanted:
            count = sock.recv_into(buffer, min(BUFFER_SIZE, wanted - position))
            view[position : position + count] = buffer[:count]
            position += count


def _write_file(
    sock: socket.socket, buffer: memoryview, descriptor: int, _mapped: mmap.mmap, wanted: int
) -> None:
    position = 0
    while position < wanted:
        count = sock.recv_into(buffer, min(BUFFER_SIZE, wanted - position))
        os.pwrite(descriptor, buffer[:count], position)
        position += count


def _make_file(path: Path, size: int) -> tuple[int, mmap.mmap]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    return descriptor, mmap.mmap(descriptor, size)


def _files(log_dir: Path) -> list[Path]:
    return sorted(log_dir.iterdir())


if __name__ == "__main__":
    target, source, copied, *how = sys.argv[1:]
    copy = receive(Path(target), Path(source), int(copied), by_pwrite=how == ["pwrite"])
    print(json.dumps(copy))

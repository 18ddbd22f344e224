"""A thread of its own that forces a node's files to the disk.

``trio.to_thread`` costs 160 us beside each fdatasync on an idle event loop (one task that puts, two
cores), a millisecond and more while tasks keep the GIL.  Here a request is a packet in a pipe, its
result a write to an eventfd, for which trio waits as for a socket::

    event loop   start ─── other work ─────────────────── epoll ── wait returns
                   │ packet: descriptors, names             ▲
    thread         └──► fdatasync, stat, one by one ── eventfd: 1, or 1 + the error and its file

The name of each file is checked after its sync (``name_check``): what was synced into a file that
is no longer at its name is lost.

Where there is the C extension, it serves requests that consist of descriptors and names, and takes
the GIL for none of it.  Other requests (``_IN_PYTHON``) call each file's ``sync``.  Invariant: each
read of the pipe returns one packet, so ``_END`` is never taken for a descriptor.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.env.name_check import lost_error
from hastore.errors import DiskError, FlushFailedError
from hastore.native.in_use import extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import DiskFile

REQUEST_SIZE_MAX: Final = 4_096  # in C; a packet of a pipe is not larger (PIPE_BUF)
_END: Final = struct.pack("=i", -1)  # in place of a descriptor: the thread ends
_IN_PYTHON: Final = struct.pack("=i", -2)
_INDEX_SHIFT: Final = 32  # in a result: errno, and from this bit on the descriptor's index
_HINT: Final = "check the disk, then start again: a start verifies the log's tail"
_IS_LOST: Final = 1 << 16  # in place of an errno: the file is not at its name
_HEAD: Final = struct.Struct("=iI")  # of a file in a request: descriptor, size of its name_check


def sync_error(path: str, code: int) -> FlushFailedError:
    """Return the error of an fdatasync.  It is final: the kernel has marked the pages clean."""
    msg = f"fdatasync of {path} failed: {os.strerror(code)}"
    return FlushFailedError(msg, path=path, hint=_HINT)


@final
@attrs.define(eq=False)
class RealSyncThread:
    """A SyncThread that starts its thread with the first request."""

    _files: Sequence[DiskFile] = attrs.field(default=(), init=False)  # of the request
    _error: BaseException | None = attrs.field(default=None, init=False)  # not of a sync in C
    _has_failed: bool = attrs.field(default=False, init=False)  # the thread has ended by itself
    _requests: int = attrs.field(default=-1, init=False)  # the pipe's end for writing
    _results: int = attrs.field(default=-1, init=False)  # the eventfd
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _descriptors: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)

    def start(self, files: Sequence[DiskFile]) -> None:
        """Send a request to the thread."""
        assert not self._files, "one request at a time"
        if self._has_failed:
            self.close()
        if self._thread is None:
            self._start_thread(files[0].path)
        request = _IN_PYTHON if extension is None else _request_of(files)
        self._files = files
        os.write(self._requests, request)

    def _start_thread(self, path: str) -> None:
        try:
            with contextlib.ExitStack() as descriptors:
                self._results = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                descriptors.callback(os.close, self._results)
                requests, self._requests = os.pipe2(os.O_CLOEXEC | os.O_DIRECT)  # of packets
                descriptors.callback(os.close, requests)
                descriptors.callback(os.close, self._requests)
                args = (requests, self._results)
                thread = threading.Thread(
                    target=self._run, args=args, name="hastore sync", daemon=True
                )
                thread.start()
                self._thread, self._descriptors = thread, descriptors.pop_all()
        except (OSError, RuntimeError) as error:
            msg = f"cannot start a thread to sync {path}: {error}"
            raise DiskError(msg, path=path) from error

    def _run(self, requests: int, results: int) -> None:
        try:
            while self._next_request(requests, results) != _END:
                try:
                    for file in self._files:
                        sync_named(file)
                except BaseException as error:  # noqa: BLE001 - ``wait`` raises it
                    self._error = error
                os.eventfd_write(results, 1)
        except BaseException as error:  # noqa: BLE001 - ``wait`` raises it
            self._error, self._has_failed = error, True
            os.eventfd_write(results, 1)

    def _next_request(self, requests: int, results: int) -> bytes:
        """Return the next request that is not served in C."""
        if extension is None:
            return os.read(requests, len(_END))
        request: bytes = extension.serve_syncs(requests, results)
        return request

    async def wait(self) -> None:
        """Wait for the result; a task that is cancelled meanwhile learns that in its next wait."""
        try:
            await trio.lowlevel.wait_readable(self._results)
        except trio.Cancelled:  # rare: a shield from the start costs a sync of 16 puts 2 %
            with trio.CancelScope(shield=True):
                await trio.lowlevel.wait_readable(self._results)
        failed = os.eventfd_read(self._results) - 1
        files, self._files = self._files, ()
        error, self._error = self._error, None
        if failed:
            file, code = files[failed >> _INDEX_SHIFT], failed & ((1 << _INDEX_SHIFT) - 1)
            if code == _IS_LOST:
                raise lost_error(file.path, file.lost_name() or "led to another file for a moment")
            raise sync_error(file.path, code)
        if self._has_failed:
            msg = f"the thread that syncs {files[0].path} failed: {error}"
            raise FlushFailedError(msg, path=files[0].path, hint=_HINT) from error
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            # Not by closing the pipe: a forked process may hold its other end open.
            os.write(self._requests, _END)
            self._thread.join()
            self._thread, self._has_failed = None, False
            self._descriptors.close()


def sync_named(file: DiskFile) -> None:
    """Sync a file and check its name; blocks.  Raises FlushFailedError, FileLostError."""
    file.sync()
    what = file.lost_name()
    if what is not None:
        raise lost_error(file.path, what)


def _request_of(files: Sequence[DiskFile]) -> bytes:
    """Return the files to sync in C.

    ``_IN_PYTHON`` if one has no descriptor or is closed, or if they are too many for a packet.
    """
    request = b""
    for file in files:
        descriptor = file.sync_descriptor()
        if descriptor is None or descriptor < 0:
            return _IN_PYTHON
        check = file.name_check
        request += _HEAD.pack(descriptor, len(check)) + check
    return request if len(request) <= REQUEST_SIZE_MAX else _IN_PYTHON

"""A thread of its own that forces a node's files to the disk.

``trio.to_thread`` costs 160 us beside each fdatasync, and more while the event loop keeps the GIL.
Here a request is a write to a pipe, its result a write to an eventfd, for which trio waits as for a
socket::

    event loop   start ─── other work ─────────── epoll ── wait returns
                   │ pipe: descriptors              ▲
    thread         └──► fdatasync, one by one ── eventfd: 1, or 1 + the error and its file

Where there is the C extension, it serves requests that consist of descriptors, and takes the GIL
for none of it.  Other requests (``_IN_PYTHON``) call each file's ``sync``.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.errors import DiskError, FlushFailedError
from hastore.native.in_use import extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import DiskFile

DESCRIPTORS_MAX: Final = 64  # of a request in C
_END: Final = struct.pack("=i", -1)  # in place of a descriptor: the thread ends
_IN_PYTHON: Final = struct.pack("=i", -2)
_INDEX_SHIFT: Final = 32  # in a result: errno, and from this bit on the descriptor's index
_DESCRIPTORS: Final = [struct.Struct(f"={count}i") for count in range(DESCRIPTORS_MAX + 1)]


def sync_error(path: str, code: int) -> FlushFailedError:
    """Return the error of an fdatasync.  It is final: the kernel has marked the pages clean."""
    msg = f"fdatasync of {path} failed: {os.strerror(code)}"
    hint = "check the disk, then start again: a start verifies the log's tail"
    return FlushFailedError(msg, path=path, hint=hint)


@final
@attrs.define(eq=False)
class RealSyncThread:
    """A SyncThread that starts its thread with the first request."""

    _files: Sequence[DiskFile] = attrs.field(default=(), init=False)  # of the request
    _error: BaseException | None = attrs.field(default=None, init=False)  # of a sync in Python
    _requests: int = attrs.field(default=-1, init=False)  # the pipe's end for writing
    _results: int = attrs.field(default=-1, init=False)  # the eventfd
    _thread: threading.Thread | None = attrs.field(default=None, init=False)
    _descriptors: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)

    def start(self, files: Sequence[DiskFile]) -> None:
        """Send a request to the thread."""
        assert not self._files, "one request at a time"
        if self._thread is None:
            self._start_thread(files[0].path)
        self._files = files
        request = _IN_PYTHON
        if extension is not None and len(files) <= DESCRIPTORS_MAX:
            descriptors = [file.sync_descriptor() for file in files]
            if None not in descriptors:
                request = _DESCRIPTORS[len(files)].pack(*descriptors)
        os.write(self._requests, request)

    def _start_thread(self, path: str) -> None:
        try:
            with contextlib.ExitStack() as descriptors:
                self._results = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                descriptors.callback(os.close, self._results)
                requests, self._requests = os.pipe()
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
        while True:
            if extension is not None:
                request = extension.serve_syncs(requests, results)
            else:
                request = os.read(requests, len(_END))
            if request == _END:
                return
            try:
                for file in self._files:
                    file.sync()
            except BaseException as error:  # noqa: BLE001 - ``wait`` raises it
                self._error = error
            os.eventfd_write(results, 1)

    async def wait(self) -> None:
        """Wait for the result."""
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._results)
        failed = os.eventfd_read(self._results) - 1
        files, self._files = self._files, ()
        error, self._error = self._error, None
        if failed:
            path = files[failed >> _INDEX_SHIFT].path
            raise sync_error(path, failed & ((1 << _INDEX_SHIFT) - 1))
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            # Not by closing the pipe: a forked process may hold its other end open.
            os.write(self._requests, _END)
            self._thread.join()
            self._thread = None
            self._descriptors.close()

"""sendfile(2) that waits for the disk only in worker threads, with a simulated page cache.

``Kernel`` replaces the system calls of ``os``: files and sockets are real, but each test decides
which pages are cached.  If sendfile needs a page that is not, the event loop would wait for the
disk, and ``Kernel`` records that.
"""

import errno
import os
import socket

import attrs
import pytest
import trio
import trio.testing

from hastore.env import sending
from hastore.env.real import RealDisk, real_env
from hastore.env.sending import (
    COPY_SIZE,
    PROBE_DISTANCE,
    STEP_SIZE,
    THREADS_MAX,
    RealSendFile,
    real_send_while,
)
from hastore.errors import DiskError
from tests.support.env.fake_env import FakeOffload

SIZE = 3 * STEP_SIZE + 12_345
PAGE = 4096


@attrs.define(eq=False)
class Kernel:
    """The numbers of the file's cached pages, the errors to raise, and the recorded calls."""

    cached: set[int] = attrs.field(factory=lambda: set(range(SIZE // PAGE + 1)))
    asked: int = 0
    waits: list[tuple[int, int]] = attrs.field(factory=list)  # for the disk, in the event loop
    ask_error: int | None = None
    send_error: int | None = None
    read_error: int | None = None
    _sendfile: object = os.sendfile
    _pread: object = os.pread

    def install(self, monkeypatch):
        for name in ("preadv", "sendfile", "pread"):
            monkeypatch.setattr(os, name, getattr(self, name))
        return self

    def preadv(self, descriptor, buffers, position, flags):
        assert flags == os.RWF_NOWAIT
        self.asked += 1
        _raise(self.ask_error)
        if position // PAGE not in self.cached:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return 1

    def pread(self, descriptor, size, position):
        _raise(self.read_error)
        self.cached |= pages(position, size)
        return self._pread(descriptor, size, position)

    def sendfile(self, out, source, position, size):
        _raise(self.send_error)
        if not pages(position, size) <= self.cached:
            self.waits.append((position, size))
        return self._sendfile(out, source, position, size)


def _raise(error):
    if error is not None:
        raise OSError(error, os.strerror(error))


def pages(position, size):
    return set(range(position // PAGE, (position + size - 1) // PAGE + 1))


@attrs.define(eq=False)
class Sent:
    """A file and a socket pair: the file is sent to ``sock`` and arrives at ``peer``."""

    data: bytes
    file: object
    sock: object
    peer: object
    offload: FakeOffload = attrs.field(factory=FakeOffload)
    send_file: RealSendFile = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.send_file = RealSendFile(self.offload)

    async def send(self, position=0, size=SIZE):
        """Send a range, and return the bytes that arrive."""
        arrived = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.send_file, self.sock, self.file, position, size)
            while len(arrived) < size:
                arrived += await self.peer.recv(STEP_SIZE)
        return bytes(arrived)


@pytest.fixture
async def sent(tmp_path):
    data = os.urandom(SIZE)
    path = tmp_path / "f"
    path.write_bytes(data)
    file = RealDisk().open_file(str(path), writable=False)
    sock, peer = trio.socket.socketpair()
    with sock, peer:
        yield Sent(data, file, sock, peer)
    file.close()


@pytest.fixture
def kernel(monkeypatch):
    return Kernel().install(monkeypatch)


async def test_cached_pages_are_sent_without_a_thread(sent, kernel):
    """A small piece takes two probes; a larger one takes one more for each 256 KiB."""
    assert await sent.send(5, 32_768) == sent.data[5 : 5 + 32_768]
    assert kernel.asked == 2
    assert await sent.send() == sent.data
    assert not sent.offload.runs
    assert not kernel.waits


async def test_cold_pages_are_first_read_in_a_thread(sent, kernel):
    """The event loop never waits for the disk, and each step is read once."""
    kernel.cached.clear()
    assert await sent.send() == sent.data
    assert not kernel.waits
    assert sent.offload.runs == 4  # three steps and the rest


@pytest.mark.parametrize(
    "cold", [0, SIZE - 1, 2 * PROBE_DISTANCE, STEP_SIZE, STEP_SIZE - 1], ids=str
)
async def test_one_cold_probed_page_causes_a_read_in_a_thread(sent, kernel, cold):
    """The first page, the last and one each 256 KiB are probed."""
    kernel.cached.remove(cold // PAGE)
    assert await sent.send() == sent.data
    assert not kernel.waits
    assert sent.offload.runs == 1


async def test_event_loop_runs_while_the_disk_is_slow(sent, kernel):
    """Nothing is sent before the thread has read it; other tasks run meanwhile."""
    kernel.cached.clear()
    sent.offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sent.send_file, sent.sock, sent.file, 0, PAGE)
        await trio.testing.wait_all_tasks_blocked()
        assert sent.offload.running == 1
        with pytest.raises(BlockingIOError):
            os.read(sent.peer.fileno(), 1)
        sent.offload.go_on()
        assert await sent.peer.recv(SIZE) == sent.data[:PAGE]
    assert not kernel.waits


async def test_probes_again_after_waiting_for_a_slow_peer(sent, kernel):
    """Pages may have been evicted from the cache while the socket was full."""
    sent.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sent.send_file, sent.sock, sent.file, 0, SIZE)
        await trio.testing.wait_all_tasks_blocked()
        assert not sent.offload.runs
        kernel.cached.clear()
        arrived = bytearray()
        while len(arrived) < SIZE:
            arrived += await sent.peer.recv(SIZE)
    assert arrived == sent.data
    assert not kernel.waits
    assert sent.offload.runs >= 3


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
async def test_kernel_without_nowait_reads_is_probed_once(sent, kernel, error):
    """After that only sendfile is used: on tmpfs, which is never cold, and before Linux 4.14."""
    kernel.ask_error = error
    assert await sent.send() == sent.data
    assert await sent.send(100, 200) == sent.data[100:300]
    assert kernel.asked == 1
    assert not sent.offload.runs


async def test_other_probe_errors_are_left_to_sendfile(sent, kernel):
    """The next send probes again, and sendfile's own error names the unreadable file."""
    kernel.ask_error = kernel.send_error = errno.EIO
    for asked in (1, 2):
        with pytest.raises(DiskError, match=rf"cannot read {sent.file.path} at 7: Input/output"):
            await sent.send_file(sent.sock, sent.file, 7, 8)
        assert kernel.asked == asked


async def test_read_error_in_the_thread_names_file_and_position(sent, kernel):
    """The thread finds the bad sector, and raises the same error as sendfile would."""
    kernel.cached.clear()
    kernel.read_error = errno.EIO
    with pytest.raises(DiskError, match=rf"cannot read {sent.file.path} at 7: Input/out") as caught:
        await sent.send_file(sent.sock, sent.file, 7, 8)
    assert "log verify" in caught.value.hint


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS])
async def test_copies_bytes_where_sendfile_does_not_work(sent, kernel, error):
    """Without splice a thread reads each piece: this is slower, but the link works."""
    kernel.send_error = error
    assert await sent.send(1, SIZE - 1) == sent.data[1:]
    assert sent.offload.runs == (SIZE - 1) // COPY_SIZE + 1
    kernel.send_error = None
    sent.offload.runs = 0
    assert await sent.send() == sent.data
    assert not sent.offload.runs


@pytest.mark.parametrize("error", [None, errno.EINVAL], ids=["sent", "copied"])
async def test_file_that_ends_early_raises_disk_error(sent, kernel, error):
    """The error names the end; the bytes before it have been sent."""
    kernel.send_error = error
    with pytest.raises(DiskError, match=f"ended at {SIZE}, before {SIZE + 1}"):
        await sent.send_file(sent.sock, sent.file, SIZE - 10, 11)
    assert await sent.peer.recv(100) == sent.data[-10:]


async def test_concurrent_cold_reads_are_limited(sent, kernel):
    """Further reads wait for their turn, so threads remain for flushes."""
    kernel.cached.clear()
    sent.offload.hang()
    async with trio.open_nursery() as nursery:
        for index in range(3 * THREADS_MAX):
            nursery.start_soon(sent.send_file, sent.sock, sent.file, index * PAGE, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert sent.offload.running == THREADS_MAX
        sent.offload.go_on()
    assert sent.offload.runs == 3 * THREADS_MAX


async def test_socket_closed_during_a_read_raises_ebadf(sent, kernel):
    """By then another socket may have the same descriptor number; it must receive nothing."""
    kernel.cached.clear()
    sent.offload.hang()
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, check=lambda e: e.errno == errno.EBADF)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sent.send_file, sent.sock, sent.file, 0, PAGE)
            await trio.testing.wait_all_tasks_blocked()
            number = sent.sock.fileno()
            sent.sock.close()
            os.dup2(sent.peer.fileno(), number)
            sent.offload.go_on()
    os.close(number)
    assert await sent.peer.recv(1) == b""


async def test_cold_file_of_the_real_kernel_is_read_in_a_thread(sent):
    """The test drops the real pages; the kernel says whether that made the file cold."""
    descriptor = sent.file.fileno()
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(descriptor, [bytearray(1)], SIZE - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        is_cold = True
    except OSError:
        is_cold = False  # tmpfs has no disk, and cannot be probed
    else:
        is_cold = False  # the file system keeps its pages
    assert await sent.send(0, STEP_SIZE) == sent.data[:STEP_SIZE]
    assert sent.offload.runs or not is_cold
    runs = sent.offload.runs
    assert await sent.send(0, STEP_SIZE) == sent.data[:STEP_SIZE]
    assert sent.offload.runs == runs


async def test_real_environment_uses_real_send_file(sent, kernel):
    """It reads in the threads of the environment's own off-load."""
    send_file = real_env().send_file
    assert isinstance(send_file, sending.RealSendFile)
    kernel.cached.clear()
    sent.send_file = send_file
    assert await sent.send() == sent.data
    assert not kernel.waits


async def test_receive_waits_for_bytes_and_ends_with_the_stream():
    """A spurious wake-up is no error."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    buffer = memoryview(bytearray(10))
    with trio.socket.from_stdlib_socket(ours) as sock, theirs:
        receive = real_env().receive
        async with trio.open_nursery() as nursery:
            counts = []

            async def read():
                counts.append(await receive(sock, buffer))

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"12345")
        assert (counts, bytes(buffer[:5])) == ([5], b"12345")
        theirs.close()
        assert await receive(sock, buffer) == 0


async def test_receive_goes_on_after_a_spurious_wake_up(monkeypatch):
    """Something else may have read the bytes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    tried, real = [], os.readv

    def readv(descriptor, buffers):
        tried.append(descriptor)
        if len(tried) == 1:
            raise BlockingIOError
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "readv", readv)
    with trio.socket.from_stdlib_socket(ours) as sock, theirs:
        theirs.send(b"12345")
        assert await real_env().receive(sock, memoryview(bytearray(3))) == 3
    assert len(tried) == 2


# -- bytes that must not leave late ---------------------------------------------------------------


async def test_send_while_sends_what_may_leave():
    """As much as there is room for, at once."""
    one, other = trio.socket.socketpair()
    with one, other:
        assert await real_send_while(one, memoryview(b"frame"), lambda: True) == 5
        assert await other.recv(10) == b"frame"
        assert await real_send_while(one, memoryview(b"late"), lambda: False) is None
        one.shutdown(trio.socket.SHUT_WR)
        assert await other.recv(10) == b""


async def test_send_while_asks_again_once_a_full_socket_has_room():
    """What has waited for a peer that did not read stays here if it is too late by then."""
    one, other = trio.socket.socketpair()
    may_leave, outcomes = True, []

    async def send(data):
        outcomes.append(await real_send_while(one, memoryview(data), lambda: may_leave))

    with one, other:
        filled = 0
        with trio.move_on_after(0.05):
            while True:
                filled += await one.send(bytes(65_536))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, b"late")
            await trio.testing.wait_all_tasks_blocked()
            may_leave = False
            received = 0
            while received < filled:
                received += len(await other.recv(65_536))
        assert outcomes == [None]
        one.shutdown(trio.socket.SHUT_WR)
        assert await other.recv(10) == b""

"""sendfile(2) that leaves the waits for the disk to threads, against a kernel with another cache.

``Kernel`` is what the calls of ``os`` meet: real files and sockets, and a page cache that is the
test's.  A sendfile of what is not in it is a wait of the event loop for the disk, and is noted.
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
from hastore.env.sending import COPY_SIZE, PROBE_DISTANCE, STEP_SIZE, THREADS_MAX, RealSendFile
from hastore.errors import DiskError
from tests.support.env.fake_env import FakeOffload

SIZE = 3 * STEP_SIZE + 12_345
PAGE = 4096


@attrs.define(eq=False)
class Kernel:
    """The pages of one file that are in the cache, by number, and what the calls answer."""

    cached: set[int] = attrs.field(factory=lambda: set(range(SIZE // PAGE + 1)))
    asked: int = 0
    waits: list[tuple[int, int]] = attrs.field(factory=list)  # of the event loop, for the disk
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
    """A file, a socket pair, and what arrives at its other end."""

    data: bytes
    file: object
    sock: object
    peer: object
    offload: FakeOffload = attrs.field(factory=FakeOffload)
    send_file: RealSendFile = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.send_file = RealSendFile(self.offload)

    async def send(self, position=0, size=SIZE):
        """Send a range, and give what came of it."""
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


async def test_what_is_in_the_cache_needs_no_thread(sent, kernel):
    """Two questions for a small piece, one more for each 256 KiB of a larger one."""
    assert await sent.send(5, 32_768) == sent.data[5 : 5 + 32_768]
    assert kernel.asked == 2
    assert await sent.send() == sent.data
    assert not sent.offload.runs
    assert not kernel.waits


async def test_what_is_cold_is_read_in_a_thread_first(sent, kernel):
    """The event loop never waits for the disk, and each step is read once."""
    kernel.cached.clear()
    assert await sent.send() == sent.data
    assert not kernel.waits
    assert sent.offload.runs == 4  # three steps and the rest


@pytest.mark.parametrize(
    "cold", [0, SIZE - 1, 2 * PROBE_DISTANCE, STEP_SIZE, STEP_SIZE - 1], ids=str
)
async def test_one_cold_page_is_enough_for_a_thread(sent, kernel, cold):
    """The first, the last, and one each 256 KiB: what read-ahead and eviction leave half done."""
    kernel.cached.remove(cold // PAGE)
    assert await sent.send() == sent.data
    assert not kernel.waits
    assert sent.offload.runs == 1


async def test_the_event_loop_goes_on_while_the_disk_is_slow(sent, kernel):
    """Nothing is sent before the thread has read, and everybody else runs."""
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


async def test_what_the_cache_gave_up_while_a_peer_was_slow_is_read_again(sent, kernel):
    """A socket that was full may have been so for long: the question is asked anew."""
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
async def test_a_kernel_that_cannot_tell_is_asked_once(sent, kernel, error):
    """Then sendfile is all there is: on tmpfs, where nothing is cold, and before Linux 4.14."""
    kernel.ask_error = error
    assert await sent.send() == sent.data
    assert await sent.send(100, 200) == sent.data[100:300]
    assert kernel.asked == 1
    assert not sent.offload.runs


async def test_another_answer_than_yes_or_no_is_sendfiles_to_explain(sent, kernel):
    """The question is asked again next time, and a file that cannot be read is named."""
    kernel.ask_error = kernel.send_error = errno.EIO
    for asked in (1, 2):
        with pytest.raises(DiskError, match=rf"cannot read {sent.file.path} at 7: Input/output"):
            await sent.send_file(sent.sock, sent.file, 7, 8)
        assert kernel.asked == asked


async def test_a_cold_page_that_cannot_be_read_is_named_likewise(sent, kernel):
    """A bad sector is met in the thread; the error is a sendfile's."""
    kernel.cached.clear()
    kernel.read_error = errno.EIO
    with pytest.raises(DiskError, match=rf"cannot read {sent.file.path} at 7: Input/out") as caught:
        await sent.send_file(sent.sock, sent.file, 7, 8)
    assert "log verify" in caught.value.hint


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS])
async def test_where_sendfile_does_not_work_the_bytes_are_copied(sent, kernel, error):
    """A file system without splice is slower, and no broken link: a thread reads each piece."""
    kernel.send_error = error
    assert await sent.send(1, SIZE - 1) == sent.data[1:]
    assert sent.offload.runs == (SIZE - 1) // COPY_SIZE + 1
    kernel.send_error = None
    sent.offload.runs = 0
    assert await sent.send() == sent.data
    assert not sent.offload.runs


@pytest.mark.parametrize("error", [None, errno.EINVAL], ids=["sent", "copied"])
async def test_a_file_that_ends_early_is_an_error(sent, kernel, error):
    """It names where; what was there was sent."""
    kernel.send_error = error
    with pytest.raises(DiskError, match=f"ended at {SIZE}, before {SIZE + 1}"):
        await sent.send_file(sent.sock, sent.file, SIZE - 10, 11)
    assert await sent.peer.recv(100) == sent.data[-10:]


async def test_few_cold_reads_have_a_thread_at_a_time(sent, kernel):
    """The others wait for their turn, and a flush finds a thread."""
    kernel.cached.clear()
    sent.offload.hang()
    async with trio.open_nursery() as nursery:
        for index in range(3 * THREADS_MAX):
            nursery.start_soon(sent.send_file, sent.sock, sent.file, index * PAGE, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert sent.offload.running == THREADS_MAX
        sent.offload.go_on()
    assert sent.offload.runs == 3 * THREADS_MAX


async def test_a_link_that_closes_meanwhile_is_broken_and_nobody_elses(sent, kernel):
    """Its descriptor's number may be another socket's by the time that the disk has answered."""
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


async def test_a_cold_file_of_this_machine_is_read_in_a_thread(sent):
    """The real kernel, its pages dropped: the bytes are right, and it says what is missing."""
    descriptor = sent.file.fileno()
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(descriptor, [bytearray(1)], SIZE - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        is_cold = True
    except OSError:
        is_cold = False  # tmpfs: it says nothing, and has no disk
    else:
        is_cold = False  # the file system keeps its pages
    assert await sent.send(0, STEP_SIZE) == sent.data[:STEP_SIZE]
    assert sent.offload.runs or not is_cold
    runs = sent.offload.runs
    assert await sent.send(0, STEP_SIZE) == sent.data[:STEP_SIZE]
    assert sent.offload.runs == runs


async def test_the_real_environment_sends_so(sent, kernel):
    """Its threads are those of its off-load."""
    send_file = real_env().send_file
    assert isinstance(send_file, sending.RealSendFile)
    kernel.cached.clear()
    sent.send_file = send_file
    assert await sent.send() == sent.data
    assert not kernel.waits

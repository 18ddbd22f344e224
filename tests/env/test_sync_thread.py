"""The thread that syncs: its order, its errors, its end; in C and in Python."""

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.config import MasterConfig, StoreConfig
from hastore.env import sync_thread
from hastore.env.real import RealDisk, RealDiskFile, real_env
from hastore.env.sync_thread import RealSyncThread
from hastore.errors import DiskError, FileLostError, FlushFailedError
from hastore.message import Message
from hastore.native.in_use import extension
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from tests.support.env.scripted_disk import ScriptedDisk, sync_failed

pytestmark = pytest.mark.usefixtures("code")


@pytest.fixture(params=["C", "Python"])
def code(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(sync_thread, "extension", None)
    elif extension is None:
        pytest.skip("there is no C extension")
    return request.param


@pytest.fixture
def thread():
    thread = RealSyncThread()
    yield thread
    thread.close()
    assert not threads()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "hastore sync"]


def real_file(tmp_path, name):
    return RealDisk().create_file(str(tmp_path / name), 4096)


def open_descriptors():
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])


def unsyncable(path):
    """A file whose fdatasync fails, because its descriptor is a pipe's."""
    read, write = os.pipe()
    os.close(write)
    return RealDiskFile(path, 1, None, read)


@attrs.define(eq=False)
class SlowFile:
    """A file whose sync ends when a test says so."""

    path: str = "/slow"
    begun: threading.Event = attrs.field(factory=threading.Event)
    may_end: threading.Event = attrs.field(factory=threading.Event)
    has_ended: bool = False

    def sync_descriptor(self):
        return None

    def lost_name(self):
        return None

    def sync(self):
        self.begun.set()
        self.may_end.wait()
        self.has_ended = True


async def test_all_files_of_a_request_are_synced_in_order(thread, tmp_path):
    """A request with one file that only Python can sync is Python's as a whole."""
    disk = ScriptedDisk(RealDisk())
    files = [disk.create_file(str(tmp_path / name), 4096) for name in "abc"]
    disk.syncs.clear()
    for _ in range(2):
        thread.start([*files[:2], real_file(tmp_path, str(len(disk.syncs))), files[2]])
        await thread.wait()
    assert [path[-1] for path in disk.syncs] == [*"abc"] * 2


async def test_a_hundred_requests_share_one_thread(thread, tmp_path):
    """A node's passes follow one another."""
    file = real_file(tmp_path, "a")
    assert not threads()
    for _ in range(100):
        thread.start([file])
        await thread.wait()
        assert len(threads()) == 1
    file.close()


@pytest.mark.parametrize("count", [3, 300])
async def test_an_error_names_the_file_that_failed(thread, tmp_path, count):
    """Whichever of a request's files it is, and the thread serves on; 300 are too many for C."""
    good = real_file(tmp_path, "good")
    bad = unsyncable("/the/bad/one")
    for place in (0, 1, count - 1):
        files = [good] * count
        files[place] = bad
        thread.start(files)
        with pytest.raises(
            FlushFailedError, match=r"fdatasync of /the/bad/one failed: Invalid"
        ) as e:
            await thread.wait()
        assert e.value.path == "/the/bad/one"
        thread.start([good] * count)
        await thread.wait()
    good.close()
    bad.close()


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced", "its directory renamed"])
async def test_a_sync_of_a_lost_file_is_an_error(thread, tmp_path, how):
    """Its bytes are on the disk, but no start finds them; the error says which file it is."""
    folder = tmp_path / "folder"
    folder.mkdir()
    good, lost = real_file(tmp_path, "good"), real_file(folder, "lost")
    thread.start([good, lost])
    await thread.wait()
    path = Path(lost.path)
    match how:
        case "removed":
            path.unlink()
        case "renamed":
            path.rename(folder / "other")
        case "replaced":
            (tmp_path / "new").write_bytes(bytes(4096))
            (tmp_path / "new").rename(path)
        case _:
            folder.rename(tmp_path / "moved")
    thread.start([good, lost])
    with pytest.raises(FileLostError, match="while this node had it open") as e:
        await thread.wait()
    assert e.value.path == lost.path
    thread.start([good])
    await thread.wait()
    good.close()
    lost.close()


async def test_nothing_is_synced_after_the_first_error(thread, tmp_path):
    """A later file's success would prove nothing."""
    disk = ScriptedDisk(RealDisk())
    files = [disk.create_file(str(tmp_path / name), 4096) for name in "abc"]
    disk.syncs.clear()
    disk.fail("sync", sync_failed("b"), path="/b")
    thread.start(files)
    with pytest.raises(FlushFailedError):
        await thread.wait()
    assert [path[-1] for path in disk.syncs] == ["a", "b"]


async def test_a_cancelled_wait_waits_for_the_end(thread):
    """Nobody takes a sync for ended, or for one that did not happen."""
    file = SlowFile()
    thread.start([file])
    ended = []

    async def wait_cancelled():
        with trio.CancelScope() as scope:
            scope.cancel()
            await thread.wait()
            ended.append(file.has_ended)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_cancelled)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
        file.may_end.set()
    assert ended == [True]


class LateThread(threading.Thread):
    """A thread that begins when it is joined."""

    def start(self):
        pass

    def join(self, timeout=None):
        super().start()
        super().join(timeout)


async def test_close_waits_for_a_sync_that_runs(thread):
    """Its file may be closed right after.  The sync ends no sooner than somebody waits for it."""
    file = SlowFile()
    thread.start([file])
    await trio.to_thread.run_sync(file.begun.wait)
    join = thread._thread.join
    thread._thread.join = lambda: (file.may_end.set(), join())
    thread.close()
    has_waited = file.has_ended
    file.may_end.set()
    assert has_waited
    assert not threads()


def test_close_before_the_request_is_read(thread, tmp_path, monkeypatch):
    """The pipe then holds two packets: the files are synced, and the thread ends."""
    file = real_file(tmp_path, "a")
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", LateThread)
        thread.start([file])
    results = os.dup(thread._results)
    thread.close()
    assert os.eventfd_read(results) == 1
    os.close(results)
    file.close()


async def test_a_closed_file_is_an_error(thread, tmp_path):
    """Its descriptor is negative, which would end the thread; the thread serves on."""
    file, closed = real_file(tmp_path, "a"), real_file(tmp_path, "b")
    closed.close()
    for files in ([closed], [file, closed]):
        thread.start(files)
        with pytest.raises(ValueError, match="negative"):
            await thread.wait()
    thread.start([file])
    await thread.wait()
    file.close()


async def test_a_thread_that_fails_is_replaced(thread, tmp_path, monkeypatch):
    """Its request fails, since nobody knows whether the files were synced."""
    file = real_file(tmp_path, "a")
    next_request = RealSyncThread._next_request
    with monkeypatch.context() as patch:
        patch.setattr(RealSyncThread, "_next_request", lambda *a: next_request(a[0], -1, a[2]))
        thread.start([file])
        with pytest.raises(FlushFailedError, match=r"that syncs .*/a failed: .*Bad file desc") as e:
            await thread.wait()
    assert e.value.path == file.path
    before = open_descriptors()
    for _ in range(3):
        thread.start([file])
        await thread.wait()
        assert len(threads()) == 1
    assert open_descriptors() == before
    file.close()


INTERRUPTED = """
#include <errno.h>
static int count;
int fdatasync(int file) {
    errno = EINTR;
    return file < 0 || count++ < 3 ? -1 : 0;
}
"""
SYNC_ONCE = """
import sys, trio
from hastore.env.real import RealDisk
from hastore.env.sync_thread import RealSyncThread
thread = RealSyncThread()
thread.start([RealDisk().create_file(sys.argv[1], 4096)])
trio.run(thread.wait)
thread.close()
"""


def test_an_interrupted_sync_is_repeated(code, tmp_path):
    """EINTR, which a network file system may return, says nothing about the disk."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "interrupted.c").write_text(INTERRUPTED)
    library = str(tmp_path / "interrupted.so")
    subprocess.run(
        (compiler, "-shared", "-fPIC", str(tmp_path / "interrupted.c"), "-o", library), check=True
    )
    variables = {"LD_PRELOAD": library, "HASTORE_PURE": "1" if code == "Python" else ""}
    command = (sys.executable, "-c", SYNC_ONCE, str(tmp_path / "a"))
    subprocess.run(command, check=True, env={**os.environ, **variables})


async def test_one_slow_disk_delays_no_other_thread(thread, tmp_path):
    """Two nodes of a process have a thread each."""
    file, slow = real_file(tmp_path, "a"), SlowFile()
    other = RealSyncThread()
    other.start([slow])
    for _ in range(3):
        thread.start([file])
        await thread.wait()
    assert not slow.has_ended
    slow.may_end.set()
    await other.wait()
    other.close()
    other.close()
    file.close()


async def test_a_forked_process_does_not_keep_the_thread_alive(thread, tmp_path):
    """It inherits the pipe, so the thread would never read its end."""
    file = real_file(tmp_path, "a")
    thread.start([file])
    await thread.wait()
    inherited = os.dup(thread._requests)
    thread.close()
    os.close(inherited)
    assert not threads()
    file.close()


async def test_without_room_for_a_thread_the_first_sync_fails(thread, tmp_path, monkeypatch):
    """No descriptor is left open."""
    file = real_file(tmp_path, "a")

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DiskError, match=r"cannot start a thread to sync .*: can't start new"):
            thread.start([file])
    assert open_descriptors() == before
    thread.start([file])
    await thread.wait()
    file.close()


# -- nodes -----------------------------------------------------------------------------------------


def master(path, env=None):
    config = MasterConfig(
        store=StoreConfig(
            data_dir=str(path), mapped_file_size=1 << 20, flush_disk_type=FlushDiskType.SYNC_FLUSH
        ),
        role=BrokerRole.ASYNC_MASTER,
        listen=None,
        ha_listen=("127.0.0.1", 0),
    )
    return hastore.open_master(config, env=env or real_env())


async def test_each_node_has_a_thread_from_its_first_sync_to_its_end(tmp_path):
    """A node that syncs nothing has none."""
    async with master(tmp_path / "a") as one:
        assert not threads()
        async with master(tmp_path / "b") as two:
            for node, count in ((one, 1), (two, 2), (one, 2)):
                result = await node.put(Message("t", b"body"))
                assert result.status is PutMessageStatus.PUT_OK
                assert len(threads()) == count
        assert len(threads()) == 1
    assert not threads()


async def test_a_node_whose_disk_fails_leaves_no_thread(tmp_path):
    """The put is answered, the node ends."""
    disk = ScriptedDisk(RealDisk())

    async def run():
        async with master(tmp_path / "a", attrs.evolve(real_env(), disk=disk)) as node:
            await node.put(Message("t", b"body"))
            disk.fail("sync", sync_failed())
            result = await node.put(Message("t", b"body"))
            assert result.status is PutMessageStatus.UNKNOWN_ERROR
            await trio.sleep_forever()

    with pytest.raises(FlushFailedError):
        await run()
    assert not threads()

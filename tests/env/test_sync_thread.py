"""The thread that syncs: its order, its errors, its end; in C and in Python."""

import gc
import os
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
from hastore.env.sync_thread import DESCRIPTORS_MAX, RealSyncThread
from hastore.errors import DiskError, FlushFailedError
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


@pytest.mark.parametrize("count", [3, DESCRIPTORS_MAX, DESCRIPTORS_MAX + 1])
async def test_an_error_names_the_file_that_failed(thread, tmp_path, count):
    """Whichever of a request's files it is, and the thread serves on."""
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


async def test_close_waits_for_a_sync_that_runs(thread):
    """Its file may be closed right after."""
    file = SlowFile()
    thread.start([file])
    await trio.to_thread.run_sync(file.begun.wait)
    closing = threading.Thread(target=thread.close)
    closing.start()
    assert not file.has_ended
    file.may_end.set()
    await trio.to_thread.run_sync(closing.join)
    assert file.has_ended
    assert not threads()


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

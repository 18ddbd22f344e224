"""A start that fails closes every file that it opened and releases the directory."""

import pytest

from hastore.errors import DiskError
from hastore.store.message_store import MessageStore
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import read_failed
from tests.support.store.message_store_model import CONFIG, StorePair, message_of
from tests.support.store.open_log import STORE_HOST


@pytest.fixture
def disk():
    """The disk of a stopped store whose last record is lost, and its checkpoint, too."""
    pair = StorePair()
    for number in range(20):
        pair.put([message_of("orders", 0, b"%d" % number, uniq=f"U{number}")])
    pair.stop()
    last = pair.puts[-1]
    pair.store.close(clean=True)
    disk = pair.disk.kill()
    name = f"{last.physic_offset // CONFIG.mapped_file_size * CONFIG.mapped_file_size:020d}"
    file = disk.open_file(f"/d/commitlog/{name}", writable=True)
    offset, size = last.range
    file.pwrite(bytes(size), offset % CONFIG.mapped_file_size)
    file.close()
    disk.remove("/d/checkpoint")
    return disk


def open_store(disk):
    return MessageStore.open(
        fake_env(disk), CONFIG, store_host=STORE_HOST, needs_queue_offsets=True
    )


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("pread", "/consumequeue/"),
        ("pread", "/commitlog/"),
        ("open_sparse_file", "/index/"),
        ("pwrite", "/index/"),  # the index is open, and is cut to the log
    ],
)
def test_a_failed_start_leaves_nothing_open(disk, call, path):
    """The next start in the same process succeeds."""
    disk.fail(call, read_failed, path=path)
    with pytest.raises(DiskError):
        open_store(disk)
    assert disk.failures
    assert not disk.open_files
    assert not disk.locked
    disk.heal()
    open_store(disk).close(clean=True)
    assert not disk.open_files


def test_a_failed_start_releases_the_directory_if_its_checkpoint_cannot_be_closed():
    """Closing the checkpoint syncs it; the files of the log are closed even if that fails, too."""
    pair = StorePair()
    pair.put([message_of("orders", 0, b"1", uniq="U1")])
    pair.stop()
    pair.put([message_of("orders", 0, b"2", uniq="U2")])
    pair.dispatch()
    disk = pair.disk.kill()

    def break_disk(operation):
        disk.fail("sync", read_failed, path="/checkpoint")
        raise read_failed(operation.path)

    disk.before("open_sparse_file", break_disk, path="/index/")
    with pytest.raises(DiskError):
        open_store(disk)
    assert disk.failures
    assert not disk.open_files
    assert not disk.locked

"""The names of a running node's files: changes by others are found, its own are not."""

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path

import attrs
import pytest

from hastore.config import StoreConfig
from hastore.env import real
from hastore.env.real import real_env
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import DiskError, EpochFileError, FileLostError
from hastore.store.epoch_file import EpochFile
from hastore.store.json_file import JsonFile
from hastore.store.message_store import MessageStore
from hastore.store.watched_disk import WatchedDisk

HOST = ("127.0.0.1", 10911)
FILE_SIZE = 16 * 1024


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def disk(root):
    with contextlib.closing(WatchedDisk(real_env().disk, str(root))) as disk:
        yield disk


@pytest.fixture
def opened(disk, root):
    """Return an open store with one queue, a table and epochs."""
    env = attrs.evolve(real_env(), disk=disk)
    config = StoreConfig(data_dir=str(root), mapped_file_size=FILE_SIZE)
    store = MessageStore.open(env, config, store_host=HOST, needs_queue_offsets=True)
    queue = store.commit_log.mapped_file_queue
    queue.offer(queue.create_file(0))
    queue.take_prepared()
    store.consume_queues.put("T", 0, 0, 0, 100, 0)
    store.consume_queues.commit()
    store.checkpoint.flushed_offset = 1
    store.checkpoint.flush()
    JsonFile(disk, f"{root}/config/topics.json").store({"a": 1})
    disk.check()
    yield store
    store.close(clean=False)


NAMES = [
    ".",
    "commitlog",
    "commitlog/00000000000000000000",
    "consumequeue",
    "consumequeue/T",
    "consumequeue/T/0/00000000000000000000",
    "config",
    "config/topics.json",
    "checkpoint",
    "abort",
    "lock",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["renamed", "replaced"])
@pytest.mark.usefixtures("opened")
def test_a_change_by_another_is_found(disk, root, tmp_path, name, how):
    """Whatever is renamed, or replaced by a copy of itself; and the answer stays the same."""
    path = root / name
    moved = tmp_path / "moved"
    path.rename(moved)
    if how == "replaced" and moved.is_dir():
        path.mkdir()
    elif how == "replaced":
        path.write_bytes(moved.read_bytes())
    with pytest.raises(FileLostError) as first:
        disk.check()
    assert first.value.path.startswith(str(root / name).removesuffix("/."))
    with pytest.raises(FileLostError) as again:
        disk.check()
    assert again.value is first.value


@pytest.mark.parametrize("how", ["renamed", "replaced"])
def test_a_directory_without_an_open_file_is_watched_from_the_start(
    disk, root, request, tmp_path, how
):
    """A start has nothing open in an index directory whose only file it could not use."""
    index = root / "index"
    index.mkdir(parents=True)
    request.getfixturevalue("opened")
    index.rename(tmp_path / "moved")
    if how == "replaced":
        index.mkdir()
    with pytest.raises(FileLostError, match="index"):
        disk.check()


def test_its_own_changes_are_not_found(disk, root, opened):
    """Tables and epochs by rename, a new file of the log, expired ones, a queue, a directory."""
    table = JsonFile(disk, f"{root}/config/topics.json")
    log = opened.commit_log.mapped_file_queue
    for number in range(3):
        table.store({"a": number})
        assert JsonFile(disk, table.path).load() == {"a": number}
        disk.check()
    EpochFile(disk, f"{root}/epochFileCheckpoint").store(EpochHistory((EpochEntry(1, 0),)))
    log.files[0].wrote_position = FILE_SIZE
    log.offer(log.create_file(FILE_SIZE))
    log.take_prepared()
    disk.check()
    first = log.take_first()
    disk.remove(first.path)
    disk.check()
    first.close()
    opened.consume_queues.truncate(0)
    disk.check()
    disk.rename(f"{root}/consumequeue", f"{root}/former")
    disk.check()
    disk.rename(f"{root}/former", f"{root}/consumequeue")
    disk.remove_tree(f"{root}/index")
    disk.check()


def test_checks_beside_its_own_changes_find_nothing(disk, root, opened):
    """A table is not there for a moment, each time that it is stored."""
    table = JsonFile(disk, f"{root}/config/topics.json")
    may_end, failures = threading.Event(), []

    def check():
        while not may_end.is_set():
            try:
                disk.check()
            except FileLostError as error:
                failures.append(error)
                return

    thread = threading.Thread(target=check)
    thread.start()
    for number in range(100):
        table.store({"a": number})
        opened.checkpoint.flushed_offset = number
        opened.checkpoint.flush()
    may_end.set()
    thread.join()
    assert not failures


@pytest.mark.usefixtures("opened")
def test_a_change_does_not_heal_a_loss(disk, root):
    """A table is not stored in a directory that was made again, nor the directory made."""
    table = JsonFile(disk, f"{root}/config/topics.json")
    shutil.rmtree(root / "config")
    with pytest.raises(FileLostError, match="config was removed"):
        table.store({"a": 2})
    assert not (root / "config").exists()
    with pytest.raises(FileLostError):
        disk.check()


def test_no_file_is_made_in_a_directory_of_others(disk, root, opened):
    """The next file of a log whose directory was replaced."""
    (root / "commitlog").rename(root / "moved")
    (root / "commitlog").mkdir()
    with pytest.raises(FileLostError, match="commitlog leads to another file"):
        opened.commit_log.mapped_file_queue.create_file(FILE_SIZE)
    assert not [*(root / "commitlog").iterdir()]


def test_a_queue_file_that_was_closed_must_be_there(disk, root, opened):
    """A new one in its place would show zeros to consumers."""
    opened.consume_queues._files.close()
    (root / "consumequeue/T/0/00000000000000000000").unlink()
    disk.check()
    opened.consume_queues.put("T", 0, 1, 100, 100, 0)
    with pytest.raises(FileLostError, match="was removed"):
        opened.consume_queues.commit()
    with pytest.raises(FileLostError):
        disk.check()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ELOOP])
def test_a_queue_file_that_cannot_be_opened_is_not_lost(disk, root, opened, monkeypatch, code):
    """The node cannot store for as long as it lasts; another mode or owner ends that."""
    opened.consume_queues._files.close()

    def refuse(path, _flags, _mode=0o644):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(real, "open_descriptor", refuse)
    monkeypatch.setattr(os.path, "exists", lambda _path: False)  # so it says for each error
    opened.consume_queues.put("T", 0, 1, 100, 100, 0)
    with pytest.raises(DiskError, match="cannot open") as error:
        opened.consume_queues.commit()
    assert not isinstance(error.value, FileLostError)
    monkeypatch.undo()
    disk.check()


@pytest.mark.parametrize("replaced", [".", "commitlog"])
def test_nothing_is_removed_from_a_directory_of_others(disk, root, opened, replaced):
    """Expiry, within a second after the directory was replaced."""
    other, name = root.with_name("other"), opened.commit_log.mapped_file_queue.files[0].path
    shutil.copytree(root, other)
    (root / replaced).rename(root.with_name("moved"))
    (other / replaced).rename(root / replaced)
    disk.remove_tree(f"{root}/trimmed" if replaced == "commitlog" else f"{other}/index")
    with pytest.raises(FileLostError):
        disk.remove(name)
    assert Path(name).exists()


@pytest.mark.usefixtures("opened")
def test_what_was_to_go_may_be_lost(disk, root):
    """The node removes its consume queues, and somebody else has."""
    (root / "consumequeue").rename(root / "moved")
    disk.remove_tree(f"{root}/consumequeue")
    disk.check()


def test_a_file_that_cannot_be_removed_is_still_watched(disk, root, opened, monkeypatch):
    """Expiry gives it back to the log, and tries again."""
    path = opened.commit_log.mapped_file_queue.files[0].path

    def refuse(_disk, path):
        raise DiskError("no", path=path)

    monkeypatch.setattr(real.RealDisk, "remove", refuse)
    monkeypatch.setattr(real.RealDisk, "remove_tree", refuse)
    for remove, name in ((disk.remove, path), (disk.remove_tree, f"{root}/config")):
        with pytest.raises(DiskError):
            remove(name)
    assert path in disk._open
    assert {f"{root}/config", f"{root}/config/topics.json"} <= disk._held.keys()
    disk.check()


def test_damaged_epochs_may_be_replaced_by_another_nodes(disk, root):
    """As the hint of the error says; good ones may not."""
    disk.make_dirs(str(root))
    epochs = EpochFile(disk, f"{root}/epochFileCheckpoint")
    for data, is_watched in ((b"damaged", False), (b"0\n0\n", True)):
        (root / "other").write_bytes(data)
        (root / "other").rename(epochs.path)
        disk.check()
        with contextlib.suppress(EpochFileError):
            epochs.load()
        assert (epochs.path in disk._held) == is_watched


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("name", ["trimmed/a", "config/topics.json.bak", "refused_slaves.json"])
def test_what_operators_may_remove_is_not_watched(disk, root, name):
    """Bytes that were cut off, the former version of a table, the slaves that are refused."""
    disk.make_dirs(str((root / name).parent))
    disk.write_file(str(root / name), b"{}")
    disk.check()
    (root / name).unlink()
    disk.check()
    (root / name).write_bytes(b"{}")
    disk.check()


def open_descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


def test_no_descriptor_is_left(root):
    """Closing the disk releases all that it held."""
    before = open_descriptors()
    with contextlib.closing(WatchedDisk(real_env().disk, str(root))) as disk:
        disk.make_dirs(f"{root}/config")
        for number in range(5):
            disk.write_file(f"{root}/identity.json", str(number).encode())
        assert open_descriptors() == before + 3
    assert open_descriptors() == before

"""Rebuilding consume queues and index from the log, also after a kill in the middle."""

import contextlib

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import DiskFullError, NotAStoreError, StoreLockedError
from hastore.message import Message
from hastore.store.recovery.rebuilt_dirs import ImmovableDirectoryError, restore_interrupted
from hastore.store.store_lock import StoreLock
from hastore.store.tools.rebuild import rebuild
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.lost_files import mounted_over
from tests.support.store.log_builder import LogBuilder
from tests.support.store.message_store_model import CONFIG, StorePair, message_of

GOLDEN_CONFIG = {
    "mapped_file_size_consume_queue": 1000,
    "max_hash_slot_num": 200,
    "max_index_num": 400,
}
QUEUES_ONLY = {"consume_queues": True, "index": False}
INDEX_ONLY = {"consume_queues": False, "index": True}


def contents(path):
    """One part's files in a golden store: queues by name, indexes in order (their names differ)."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if path.name == "index":
        return [file.read_bytes() for file in files]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica", "crashed"])
def test_rebuild_from_a_golden_log_equals_rocketmqs_files(golden, golden_copy, name):
    """All consume queues and index files are equal byte for byte, and nothing is left over."""
    path = golden_copy(name)
    before = {entry.name for entry in path.iterdir()}
    config = StoreConfig(data_dir=str(path), **GOLDEN_CONFIG)
    seen = []
    report = rebuild(
        real_env(), str(path), config, consume_queues=True, index=True, on_progress=seen.append
    )
    for part in ("consumequeue", "index"):
        assert contents(path / part) == contents(golden / name / part)
    assert {entry.name for entry in path.iterdir()} == before
    assert report.unreadable == report.queues_kept == 0
    assert report.index_files == len(contents(path / "index"))
    assert report.keys == sum(
        int.from_bytes(file[36:40]) - 1 for file in contents(golden / name / "index")
    )
    assert sum(seen) >= 50_000


def test_consume_queues_and_index_are_rebuilt_separately(golden, golden_copy):
    """The other part is not touched."""
    path = golden_copy("clean")
    config = StoreConfig(data_dir=str(path), **GOLDEN_CONFIG)
    index = {file.name: file.read_bytes() for file in (path / "index").iterdir()}
    rebuild(real_env(), str(path), config, **QUEUES_ONLY)
    assert {file.name: file.read_bytes() for file in (path / "index").iterdir()} == index
    (path / "consumequeue" / "mine").write_text("kept")
    rebuild(real_env(), str(path), config, **INDEX_ONLY)
    assert (path / "consumequeue" / "mine").read_text() == "kept"


def stopped_store():
    """The model of a cleanly stopped store with two topics, tags and keys."""
    pair = StorePair()
    for number in range(60):
        pair.clock.ms += 300
        pair.put(
            [
                message_of(
                    ("orders", "x")[number % 2],
                    number % 3 % 2,
                    b"b" * (number * 7 % 400 + 1),
                    tags=("red", None)[number % 2],
                    uniq=f"U{number}",
                    keys=["k", f"key-{number}"],
                )
            ]
        )
    pair.stop()
    pair.store.close(clean=True)
    return pair


def derived_files(disk):
    """All consume-queue files by path, and all index files in order."""
    queues = disk.files("/d/consumequeue/")
    return queues, list(disk.files("/d/index/").values())


def reopen_and_check(pair, disk):
    """Open the store on another disk, and check every answer."""
    pair.disk = disk
    pair.open()
    for topic in ("orders", "x"):
        for queue_id in (0, 1):
            pair.check_get(topic, queue_id, 0, 100, None)
        for key in ("k", "U7", "U8", "key-30", "nobody"):
            pair.check_query(topic, key, 100, 0, 2**62)


def test_rebuild_restores_damaged_queues_and_index():
    """The files equal the original ones, and every answer is right."""
    pair = stopped_store()
    expected = derived_files(pair.disk)
    disk = pair.disk.kill()
    for path in disk.files("/d/consumequeue/"):
        disk.inodes[f"/d/consumequeue/{path}"].cache[:3] = b"\xff\xff\xff"
    for path in disk.files("/d/index/"):
        disk.inodes[f"/d/index/{path}"].cache[30:200] = bytes(170)
    rebuild(fake_env(disk, pair.clock), "/d", CONFIG, consume_queues=True, index=True)
    assert derived_files(disk) == expected
    reopen_and_check(pair, disk.kill())


def test_rebuilt_files_are_on_disk():
    """A power cut right after the rebuild changes nothing."""
    pair = stopped_store()
    expected = derived_files(pair.disk)
    disk = pair.disk.kill()
    rebuild(fake_env(disk, pair.clock), "/d", CONFIG, consume_queues=True, index=True)
    assert derived_files(disk.cut_power()) == expected


@pytest.mark.parametrize("is_clean", [True, False])
def test_kill_at_any_step_leaves_a_complete_store(monkeypatch, is_clean):
    """Before and after each rename and removal the store opens, and every answer is right."""
    pair = stopped_store()
    disk = pair.disk.kill()
    if not is_clean:
        disk.put("/d/abort", b"1")
    snapshots = []

    def around(method):
        def call(self, *arguments):
            if self is disk:
                snapshots.append(self.kill())
            method(self, *arguments)
            if self is disk:
                snapshots.append(self.kill())

        return call

    for name in ("rename", "remove_tree", "write_file"):
        monkeypatch.setattr(FakeDisk, name, around(getattr(FakeDisk, name)))
    rebuild(fake_env(disk, pair.clock), "/d", CONFIG, consume_queues=True, index=True)
    assert len(snapshots) >= 14
    for after in snapshots:
        reopen_and_check(pair, after.kill())
        pair.store.close(clean=False)
        # Another rebuild from this state works too.
        rebuild(fake_env(after, pair.clock), "/d", CONFIG, consume_queues=True, index=True)
        assert not [path for path in after.inodes if ".old-" in path or "rebuild.tmp" in path]
        reopen_and_check(pair, after.kill())


def test_full_disk_leaves_the_old_files():
    """The error is raised, and the next rebuild works."""
    pair = stopped_store()
    disk = pair.disk.kill()
    expected = derived_files(disk)
    disk.fail("pwrite", disk_full())
    with pytest.raises(DiskFullError):
        rebuild(fake_env(disk, pair.clock), "/d", CONFIG, consume_queues=True, index=True)
    assert derived_files(disk) == expected
    disk.heal()
    rebuild(fake_env(disk, pair.clock), "/d", CONFIG, consume_queues=True, index=True)
    assert derived_files(disk) == expected
    reopen_and_check(pair, disk.kill())


def test_rebuild_of_a_running_node_is_refused():
    """The node holds the store's lock."""
    pair = stopped_store()
    disk = pair.disk.kill()
    expected = derived_files(disk)
    lock = StoreLock.take(disk, "/d")
    with pytest.raises(StoreLockedError):
        rebuild(fake_env(disk), "/d", CONFIG, **INDEX_ONLY)
    assert derived_files(disk) == expected
    lock.release(clean=False)


def test_log_without_a_store_is_refused():
    """Queues and index belong in the store's directory, but there is none."""
    disk = FakeDisk()
    disk.put("/logs/00000000000000000000", bytes(4096))
    with pytest.raises(NotAStoreError, match="without the store"):
        rebuild(fake_env(disk), "/logs", CONFIG, **INDEX_ONLY)


def test_queue_without_records_in_the_log_is_kept():
    """Its next message must not get a queue offset that was used before."""
    pair = StorePair()
    for number in range(100):
        topic = "gone" if number < 20 else "orders"
        pair.put([message_of(topic, 0, b"b" * 100, tags=None, uniq=f"U{number}", keys=[])])
    pair.stop()
    pair.store.close(clean=True)
    disk = pair.disk.kill()
    first_name = min(disk.files())
    for _ in range(2):
        disk.remove(f"/d/commitlog/{min(disk.files())}")
    assert min(disk.files()) > first_name
    gone = disk.files("/d/consumequeue/gone/0/")
    report = rebuild(fake_env(disk), "/d", CONFIG, **QUEUES_ONLY)
    assert report.queues_kept == 1
    assert report.queues == 1
    assert disk.files("/d/consumequeue/gone/0/") == gone
    pair.disk = disk.kill()
    pair.open()
    result = pair.store.commit_log.append_message(Message("gone", b"again"))
    assert result.queue_offset == 20


def test_damaged_records_are_skipped_and_counted():
    """The records after the damage are dispatched."""
    builder = LogBuilder().fill(10)
    data = builder.flipped(builder.offsets[4] + 4)
    disk = builder.on_disk(data)
    report = rebuild(fake_env(disk), "/d", CONFIG, consume_queues=True, index=True)
    assert (report.records, report.unreadable, report.units, report.keys) == (9, 1, 9, 9)
    assert report.end_offset == builder.end


def test_rebuild_of_an_empty_log_creates_empty_directories():
    """All messages of the store have been lost."""
    disk = FakeDisk()
    disk.put("/d/commitlog/00000000000000000000", bytes(4096))
    report = rebuild(fake_env(disk), "/d", CONFIG, consume_queues=True, index=True)
    assert (report.records, report.queues, report.index_files) == (0, 0, 0)
    assert disk.exists("/d/index")
    assert disk.exists("/d/consumequeue")


def test_old_directory_is_restored_only_if_the_new_one_is_missing():
    """Otherwise the new one counts; the next rebuild removes the old one."""
    disk = FakeDisk()
    disk.put("/d/index/a", b"new")
    disk.put("/d/index.old-1", b"a file")
    disk.put("/d/index.old-2/a", b"old")
    assert restore_interrupted(disk, "/d") == ()
    disk.remove_tree("/d/index")
    assert restore_interrupted(disk, "/d") == ("index",)
    assert disk.files("/d/index/") == {"a": b"old"}


@pytest.mark.parametrize("part", ["consumequeue", "index"])
@pytest.mark.parametrize("kind", ["a symbolic link", "a mount point"])
def test_rebuild_refuses_a_directory_that_it_cannot_replace(golden_copy, tmp_path, kind, part):
    """Before any work: nothing has changed, and the error says what to do."""
    path = golden_copy("clean")
    elsewhere = tmp_path / "other-disk"
    (path / part).rename(elsewhere)
    place = contextlib.nullcontext()
    if kind == "a symbolic link":
        (path / part).symlink_to(elsewhere)
    else:
        (path / part).mkdir()
        place = mounted_over(path / part, elsewhere)
    config = StoreConfig(data_dir=str(path), **GOLDEN_CONFIG)
    with place:
        names = {entry.name for entry in path.iterdir()}
        before = contents(path / part)
        seen = []
        with pytest.raises(ImmovableDirectoryError, match=kind) as refused:
            rebuild(
                real_env(),
                str(path),
                config,
                consume_queues=True,
                index=True,
                on_progress=seen.append,
            )
        assert "rebuild, and move the new" in refused.value.hint
        assert seen == []
        assert {entry.name for entry in path.iterdir()} == names
        assert contents(path / part) == before != {}
        # The other directory can still be rebuilt.
        rebuild(real_env(), str(path), config, **(INDEX_ONLY, QUEUES_ONLY)[part == "index"])


def test_a_link_that_an_interrupted_rebuild_left_behind_is_removed(golden_copy, tmp_path):
    """Earlier versions renamed links; where they lead nothing is removed."""
    path = golden_copy("clean")
    elsewhere = tmp_path / "other-disk"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("kept")
    (path / "index.old-1").symlink_to(elsewhere)
    config = StoreConfig(data_dir=str(path), **GOLDEN_CONFIG)
    rebuild(real_env(), str(path), config, **INDEX_ONLY)
    assert not (path / "index.old-1").is_symlink()
    assert (elsewhere / "mine").read_text() == "kept"

"""A start after a kill syncs the directories of files that the killed process created.

After kill -9 such a file still exists, but a power cut could take its name. A queue whose file is
lost begins at 0 again, although records hold higher queue offsets.
"""

import pytest

from hastore.sim.disk import SimDisk
from tests.store.whole_store import config_of, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store import open_log
from tests.support.store.consume_queues import ROOT, all_units, flush, open_queues, put, unit
from tests.support.store.index_stores import fake_service
from tests.support.store.index_stores import flush as flush_index
from tests.support.store.recovering import recover


def keeps_nothing():
    return False


def test_queue_created_by_a_killed_process_survives_a_power_cut():
    """The second process syncs both its units and the name of its file."""
    disk = SimDisk(now_ms=lambda: 0)
    put(open_queues(disk), 0, 7)
    disk = disk.after_kill()
    flush(open_queues(disk))
    store = open_queues(disk.after_power_cut(keeps_nothing), last_exit_ok=False)
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(7)}


@pytest.mark.parametrize("last_exit_ok", [False, True])
def test_queue_directories_are_synced_only_after_a_kill(last_exit_ok):
    """They are those of the queue, its topic and all topics; a clean stop has synced them."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 7)
    store.settle()
    store = open_queues(disk.kill(), last_exit_ok=last_exit_ok)
    expected = [] if last_exit_ok else [f"{ROOT}/t/0", f"{ROOT}/t", ROOT]
    assert store.dirty_dirs() == expected


def test_first_index_flush_after_a_kill_syncs_the_directory():
    """A second flush has nothing to do."""
    service = fake_service()
    service.put("t", ["k"], 0, 1)
    service.record_seen(0, 100)
    service.commit()
    flush_index(service)
    again = fake_service(service.env.disk.kill(), last_exit_ok=False)
    assert flush_index(again) == 1
    assert "/d/index" in again.env.disk.syncs
    assert flush_index(again) == 0


@pytest.mark.parametrize("parent", ["", "/home/me"])
def test_store_and_config_directories_are_synced_after_a_kill(parent):
    """An answer may depend on a topic whose file the killed process had just renamed."""
    disk, path = FakeDisk(), f"{parent}/d"
    for last_exit_ok in (True, False):
        disk.make_dirs(f"{path}/config")
        store = open_store(fake_env(disk), config_of(path))
        first = disk.syncs[:4]
        expected = [parent or "/", path, f"{path}/config"]
        assert (first[:3] == expected) is not last_exit_ok
        store.close(clean=False)
        disk = disk.kill()


@pytest.mark.parametrize("master", [True, False])
def test_log_directory_is_synced_by_a_start_after_a_kill(master):
    """Only then may the start report its files as durable."""
    disk = FakeDisk()
    store = recover(disk)
    open_log.append(store.log)
    disk = disk.kill()
    recover(disk, master=master)
    assert "/d/commitlog" in disk.syncs

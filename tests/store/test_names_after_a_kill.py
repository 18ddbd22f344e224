"""Files whose maker was killed before it synced their directory: the next start has it synced.

After kill -9 such a file is there, but a power cut would still take its name.  A queue whose file
is lost begins at 0 again, beside records that say otherwise.
"""

import pytest

from hastore.sim.disk import SimDisk
from tests.store.test_message_store import config_of, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store import open_log
from tests.support.store.consume_queues import ROOT, all_units, flush, open_queues, put, unit
from tests.support.store.index_stores import fake_service
from tests.support.store.index_stores import flush as flush_index
from tests.support.store.recovering import recover


def keeps_nothing():
    return False


def test_a_queue_that_a_killed_process_made_outlives_a_power_cut():
    """Its units were synced by the second process, and so was the name of its file."""
    disk = SimDisk(now_ms=lambda: 0)
    put(open_queues(disk), 0, 7)
    disk = disk.after_kill()
    flush(open_queues(disk))
    store = open_queues(disk.after_power_cut(keeps_nothing), last_exit_ok=False)
    assert all_units(store.find("t", 0)) == {index: unit(index) for index in range(7)}


@pytest.mark.parametrize("last_exit_ok", [False, True])
def test_directories_are_synced_after_a_kill_only(last_exit_ok):
    """Of the queue, of its topic, and of all topics; a clean stop has done it."""
    disk = FakeDisk()
    store = open_queues(disk)
    put(store, 0, 7)
    store.settle()
    store = open_queues(disk.kill(), last_exit_ok=last_exit_ok)
    expected = [] if last_exit_ok else [f"{ROOT}/t/0", f"{ROOT}/t", ROOT]
    assert store.dirty_dirs() == expected


def test_the_index_directory_is_synced_after_a_kill():
    """By the start that cuts something off, or by the first flush; a second has nothing to do."""
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
def test_the_name_of_the_store_and_its_configuration_are_synced_after_a_kill(parent):
    """An answer may rest on a topic whose file was renamed by a process that was killed then."""
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
def test_the_log_directory_is_synced_by_a_start_after_a_kill(master):
    """Before anything is promised of what is in it."""
    disk = FakeDisk()
    store = recover(disk)
    open_log.append(store.log)
    disk = disk.kill()
    recover(disk, master=master)
    assert "/d/commitlog" in disk.syncs

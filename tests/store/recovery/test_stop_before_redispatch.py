"""A stop before redispatch has caught up is not a clean stop (simulator, seed 335).

A power cut may remove units from the ends of queues. The next start dispatches again from an
earlier offset. If that run stopped cleanly before it caught up, the start after it began after the
holes, and consumers never received the messages in them.
"""

from hastore.message import Message
from tests.store.whole_store import config_of, dispatch, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, flush


async def crashed():
    """A disk with forty dispatched records, killed before the queues were flushed."""
    disk = FakeDisk()
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for number in range(40):
        append(store.commit_log, Message("orders", b"%d" % number, queue_id=number % 2))
    flush(store.commit_log)
    await dispatch(env, store)
    return disk.kill()


async def test_stop_before_redispatch_has_caught_up_counts_as_a_crash(autojump_clock):
    """The next start recovers and dispatches the same range again."""
    disk = await crashed()
    for _ in range(2):
        store = open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE))
        report = store.commit_log.load_report
        assert not report.last_exit_ok
        assert store.redispatch_from < report.dispatched_to
        store.close(clean=True)


async def test_who_holds_more_than_the_lock_is_told_that_a_stop_counts_as_a_crash(autojump_clock):
    """Seed 20188 with etcd: a node forgot what it had acknowledged, and could not be elected."""
    disk = await crashed()
    store = open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE))
    stops = []
    store.close(clean=True, before_release=lambda clean: stops.append((clean, len(disk.locked))))
    assert stops == [(False, 1)]


async def test_stop_counts_as_a_crash_if_one_queue_lost_all_its_units(autojump_clock):
    """Seed 38049: redispatch begins at 0 for that queue, while the others reach the log's end."""
    disk = await crashed()
    path = f"/d/consumequeue/orders/1/{0:020d}"
    image = disk.inodes[path].seen()
    disk.put(path, bytes(20) + image[20:])
    for _ in range(2):
        store = open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE))
        report = store.commit_log.load_report
        assert not report.last_exit_ok
        assert store.redispatch_from == 0 < report.dispatched_to
        store.close(clean=True)


async def test_stop_after_redispatch_has_caught_up_is_clean(autojump_clock):
    """The next start dispatches nothing again."""
    disk = await crashed()
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    store.redispatched_to = (await dispatch(env, store)).committed_offset
    store.close(clean=True)
    store = open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE))
    assert store.commit_log.load_report.last_exit_ok
    assert store.redispatch_from == store.commit_log.max_offset
    store.close(clean=True)

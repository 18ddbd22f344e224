"""A stop before the dispatch has come again to where it was is no clean one (simulator, seed 335).

A power cut may take units from the queues' ends.  The next start dispatches again from further
back; where that run ended cleanly before it got there, the one after it began behind the holes, and
consumers were never served what had been in them.
"""

from hastore.message import Message
from tests.store.test_message_store import config_of, dispatch, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, flush


async def crashed():
    """A disk with forty dispatched records, killed before the queues' flush."""
    disk = FakeDisk()
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for number in range(40):
        append(store.commit_log, Message("orders", b"%d" % number, queue_id=number % 2))
    flush(store.commit_log)
    await dispatch(env, store)
    return disk.kill()


async def test_a_stop_before_the_dispatch_has_caught_up_is_a_crash(autojump_clock):
    """The start after it looks at everything again."""
    disk = await crashed()
    for _ in range(2):
        store = open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE))
        report = store.commit_log.load_report
        assert not report.last_exit_ok
        assert store.redispatch_from < report.dispatched_to
        store.close(clean=True)


async def test_a_queue_that_lost_all_is_no_reason_to_trust_the_others(autojump_clock):
    """Seed 38049: its loss has the dispatch begin at 0, and the others know the log's end."""
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


async def test_a_stop_after_it_has_caught_up_is_clean(autojump_clock):
    """Nothing is dispatched twice."""
    disk = await crashed()
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    store.redispatched_to = (await dispatch(env, store)).committed_offset
    store.close(clean=True)
    store = open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE))
    assert store.commit_log.load_report.last_exit_ok
    assert store.redispatch_from == store.commit_log.max_offset
    store.close(clean=True)

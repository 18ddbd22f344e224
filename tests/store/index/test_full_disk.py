"""A start on a full disk removes index files, and indexes again once there is room."""

import pytest

from tests.support.env.scripted_disk import disk_full
from tests.support.store.message_store_model import StorePair, message_of

KEYS = ("a", "b", "AaAa", "BBBB")


@pytest.mark.parametrize("count", [3, 20, 60])
@pytest.mark.parametrize("flushed", [0, 2, 50])
def test_removes_and_reindexes_a_file_that_cannot_be_truncated(caplog, count, flushed):
    """A kill requires truncation; if there is no room for that, the last file is removed."""
    pair = StorePair()
    for number in range(count):
        key = KEYS[number % len(KEYS)]
        pair.put([message_of("orders", 0, b"%d" % number, uniq=f"U{number}", keys=[key])])
        if number == flushed:
            pair.dispatch()
            pair.flush_queues()
    pair.dispatch()
    # As kill() does, but there is room for the dispatch only after the start.
    pair.disk = pair.disk.kill()
    pair.disk.fail("pwrite", disk_full, path="/index/")
    dispatch, pair.dispatch = pair.dispatch, pair.disk.heal
    pair.open()
    assert "index_file_removed" in caplog.text
    del pair.dispatch
    dispatch()
    pair.check_all(["orders"], [0], [*KEYS, "U0", f"U{count - 1}"])
    pair.stop()
    pair.check_all(["orders"], [0], [*KEYS, "U0", f"U{count - 1}"])

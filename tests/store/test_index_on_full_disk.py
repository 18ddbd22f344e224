"""A start on a full disk: the index gives way, and comes back as there is room."""

import pytest

from tests.support.env.scripted_disk import disk_full
from tests.support.store.message_store_model import StorePair, message_of

KEYS = ("a", "b", "AaAa", "BBBB")


@pytest.mark.parametrize("count", [3, 20, 60])
@pytest.mark.parametrize("flushed", [0, 2, 50])
def test_what_of_an_index_cannot_be_cut_is_removed_and_indexed_again(caplog, count, flushed):
    """After a kill the index must be cut: where that needs room, its last file goes instead."""
    pair = StorePair()
    for number in range(count):
        key = KEYS[number % len(KEYS)]
        pair.put([message_of("orders", 0, b"%d" % number, uniq=f"U{number}", keys=[key])])
        if number == flushed:
            pair.dispatch()
            pair.flush_queues()
    pair.dispatch()
    # As kill() does, but the dispatch finds room only after the start.
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

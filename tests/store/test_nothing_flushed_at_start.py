"""Where nothing of a log was ever flushed, a start looks at all of it (simulator, seed 811).

A new slave with ASYNC_FLUSH had received five files when its power was cut, half a second after the
first byte; its start looked at the last three, and took the first for sound: it was zeros.
"""

import pytest

from hastore.store.recovery.rules import Known

FILES = (0, 100, 200, 300, 400)


@pytest.mark.parametrize(("flushed", "first"), [(0, 0), (100, 1), (250, 2), (400, 4), (None, 2)])
def test_the_walk_begins_at_or_before_the_first_byte_that_may_be_lost(flushed, first):
    """An offset of 0 is knowledge, too; without any, the last three files are looked at."""
    known = Known(last_exit_ok=False, flushed_offset=flushed, settled_ms=0)
    found = known.first_file(FILES, 100, 4, lambda _index: 7, needs_queue_offsets=False)
    assert found == first

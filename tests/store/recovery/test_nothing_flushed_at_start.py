"""If nothing of a log was ever flushed, a start checks all of it (simulator, seed 811).

A new slave with ASYNC_FLUSH had received five files when its power was cut, half a second after the
first byte. Its start checked only the last three, and took the first for intact: it was zeros.
"""

import pytest

from hastore.store.recovery.rules import StartFacts

FILES = (0, 100, 200, 300, 400)


@pytest.mark.parametrize(("flushed", "first"), [(0, 0), (100, 1), (250, 2), (400, 4), (None, 2)])
def test_walk_begins_at_or_before_the_first_unflushed_byte(flushed, first):
    """A flushed offset of 0 counts too; without any, only the last three files are checked."""
    facts = StartFacts(last_exit_ok=False, flushed_offset=flushed, settled_ms=0)
    found = facts.first_file(FILES, 100, 4, lambda _index: 7, needs_queue_offsets=False)
    assert found == first

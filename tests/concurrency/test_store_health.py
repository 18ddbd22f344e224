"""Whether a node can store: each failure counts until the same write succeeds."""

import pytest

from hastore.concurrency.store_health import STEADY_AFTER_S, StoreHealth, Write


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_one_failure_of_several_is_enough(clock):
    """The node can store again once all that failed works."""
    health = StoreHealth(clock)
    health.failed(Write.CONFIG, "topics: no space", part="topics.json")
    clock.now = 103.0
    health.failed(Write.NEXT_FILE, "no space for the next file")
    assert (health.can_store, health.unable_for_s) == (False, 3.0)
    assert health.reason == "no space for the next file"
    assert list(health.failures) == ["the next log file", "topics, groups and offsets"]
    health.works(Write.NEXT_FILE)
    health.works(Write.CONFIG, part="consumerOffset.json")
    assert health.reason == "topics: no space"
    clock.now = 110.0
    health.works(Write.CONFIG, part="topics.json")
    assert (health.can_store, health.reason, health.able_since) == (True, None, 110.0)


def test_only_changes_are_announced(clock):
    """A failure that repeats, or a second one, changes nothing for those who act on it."""
    health, seen = StoreHealth(clock), []
    health.subscribe(lambda: seen.append(health.can_store))
    health.works(Write.NEXT_FILE)
    health.failed(Write.NEXT_FILE, "no space")
    health.failed(Write.NEXT_FILE, "still no space")
    health.failed(Write.DISK_LEVEL, "91 % full")
    health.works(Write.NEXT_FILE)
    health.works(Write.DISK_LEVEL)
    assert seen == [False, True]


def test_steady_takes_time_and_room(clock):
    """A node takes over from a full one only with room for two files, and not at once."""
    health = StoreHealth(clock)
    clock.now += STEADY_AFTER_S
    assert not health.is_steady  # the room is not known
    health.has_room_for_two_files = True
    assert health.is_steady
    health.failed(Write.NEXT_FILE, "no space")
    health.works(Write.NEXT_FILE)
    assert not health.is_steady
    clock.now += STEADY_AFTER_S
    assert health.is_steady


def test_a_new_role_forgets_what_only_the_former_one_wrote(clock):
    """The next file is the directory's, whatever the role; tables and queues start again."""
    health = StoreHealth(clock)
    health.failed(Write.NEXT_FILE, "no space")
    health.failed(Write.CONSUME_QUEUES, "no space for units")
    health.failed(Write.CONFIG, "no space for topics", part="topics.json")
    health.role_ended()
    assert list(health.failures) == ["the next log file"]

"""A disk that hangs is noticed."""

from hastore.cluster.flush_watch import FlushWatch


def look(watch, now, flushed, end):
    """Look at a log with a limit of 10 s."""
    return watch.hangs(now, flushed=flushed, end=end, limit_s=10.0)


def test_a_disk_hangs_where_nothing_was_flushed_for_longer_than_the_limit():
    """What waits may grow meanwhile."""
    watch = FlushWatch()
    assert not look(watch, 0.0, 100, 200)
    assert not look(watch, 10.0, 100, 300)
    assert look(watch, 10.1, 100, 400)


def test_a_disk_that_flushes_something_does_not_hang():
    """However slow it is."""
    watch = FlushWatch()
    for second in range(0, 100, 9):
        assert not look(watch, float(second), second, 1_000)


def test_a_log_that_has_been_flushed_whole_begins_again():
    """Its next bytes have waited for nothing yet."""
    watch = FlushWatch()
    assert not look(watch, 0.0, 100, 200)
    assert not look(watch, 9.0, 200, 200)
    assert not look(watch, 15.0, 200, 300)
    assert look(watch, 26.0, 200, 300)


def test_what_was_seen_of_another_log_is_forgotten():
    """The offsets may be the same."""
    watch = FlushWatch()
    assert not look(watch, 0.0, 100, 200)
    watch.forget()
    assert not look(watch, 15.0, 100, 200)

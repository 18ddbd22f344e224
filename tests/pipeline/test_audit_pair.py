"""The ranges of two logs are compared as intervals, without Spark."""

from hypothesis import given
from hypothesis import strategies as st

from hastore.env.real import real_env
from hastore.pipeline.audit.pair import OffsetSpan, Pair, inspect_side, merged, subtract
from hastore.store.tools.log_diff import DiffVerdict, verdict_of
from tests.support.store.log_builder import LogBuilder

DISK = real_env().disk
SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda s: OffsetSpan(s[0], s[0] + s[1]))
)


def points(spans):
    """Return the set of numbers in some spans."""
    return {point for span in spans for point in range(span.start, span.end)}


@given(SPANS, SPANS)
def test_subtracted_spans_equal_subtracted_sets(left, right):
    """Spans are compared with the sets of their numbers."""
    left, right = merged(left), merged(right)
    found = subtract(left, right)
    assert points(found) == points(left) - points(right)
    assert found == merged(found)


def test_missing_ranges_are_those_without_files(tmp_path):
    """The replica lacks its first file, one in the middle, and the end."""
    log = LogBuilder().fill(150)
    master = log.write(tmp_path / "master")
    replica = log.write(tmp_path / "replica", data=log.data[: log.offsets[140]])
    for start in (0, 2 * 4096):
        (replica / "commitlog" / f"{start:020d}").unlink()
    pair = Pair(master=inspect_side(DISK, str(master)), replica=inspect_side(DISK, str(replica)))
    assert pair.missing_in_replica == (
        OffsetSpan(0, 4096),
        OffsetSpan(2 * 4096, 3 * 4096),
        OffsetSpan(log.offsets[140], log.end),
    )
    assert pair.missing_in_master == ()
    assert pair.common == OffsetSpan(4096, log.offsets[140])
    assert pair.first_hole == 2 * 4096
    assert verdict_of(pair.master.log, pair.replica.log, None) is DiffVerdict.PREFIX
    assert verdict_of(pair.master.log, pair.replica.log, pair.first_hole) is DiffVerdict.DIFFERENT

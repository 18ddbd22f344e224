"""Whether a frame's size shows that its master has no more to send."""

import pytest

from hastore.ha.copy_progress import FrameSizes

KIB = 1024
FILE = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "reached_end"),
    [
        ([300], True),
        ([32 * KIB], False),
        ([32 * KIB, 64 * KIB, 128 * KIB], False),
        ([32 * KIB, 64 * KIB, 70_003], True),  # the batch was 128 KiB
        ([1_000, 1_000], False),  # may be the batch size of another master
        ([1_000, 1_000, 7], True),
        ([4 * KIB, 8 * KIB, 16 * KIB], False),  # a master that doubles smaller batches than ours
        ([FILE - 1, 1], False),  # the end of the file: the next one may hold more
        ([300, FILE], False),
    ],
)
def test_frame_smaller_than_a_batch_means_no_more_bytes(sizes, reached_end):
    """More may follow a full batch or the end of a file."""
    frames = FrameSizes(32 * KIB, FILE)
    end = 0
    for size in sizes:
        end += size
        frames.record(end, size)
    assert frames.reached_end is reached_end


def test_a_frame_that_ends_with_an_epoch_says_nothing_about_the_end():
    """The next epoch's bytes may follow, in a frame with another label."""
    frames = FrameSizes(32 * KIB, FILE, frozenset({700}))
    frames.record(700, 700)
    assert not frames.reached_end
    frames.record(1_000, 300)
    assert frames.reached_end

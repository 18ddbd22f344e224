"""What the size of a frame tells of what its master still has."""

import pytest

from hastore.ha.copy_progress import FrameSizes

KIB = 1024
FILE = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "was_all"),
    [
        ([300], True),
        ([32 * KIB], False),
        ([32 * KIB, 64 * KIB, 128 * KIB], False),
        ([32 * KIB, 64 * KIB, 70_003], True),  # the batch was 128 KiB
        ([1_000, 1_000], False),  # another master's batch, as far as one can tell
        ([1_000, 1_000, 7], True),
        ([4 * KIB, 8 * KIB, 16 * KIB], False),  # smaller batches than ours, and a doubling master
        ([FILE - 1, 1], False),  # the file's end, and the next may hold more
        ([300, FILE], False),
    ],
)
def test_a_frame_that_fills_no_batch_was_all_there_was(sizes, was_all):
    """Full batches and the end of a file are followed by more, for all one knows."""
    frames = FrameSizes(32 * KIB, FILE)
    end = 0
    for size in sizes:
        end += size
        frames.note(end, size)
    assert frames.was_all is was_all

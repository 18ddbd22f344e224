"""What a nursery's group of errors becomes."""

import pytest

from hastore.concurrency.service import as_itself
from hastore.errors import DiskError, FileLostError

FULL = DiskError("no space", path="/d")
LOST = FileLostError("/d/commitlog was removed", path="/d/commitlog")
FILE_LOST = FileLostError("/d/commitlog/0 was removed", path="/d/commitlog/0")


def group(*errors):
    """Return errors of which one is in a group of its own."""
    return ExceptionGroup("outer", [*errors[:-1], ExceptionGroup("inner", [errors[-1]])])


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ((FULL,), FULL),
        ((FULL, FULL), FULL),
        ((LOST, FILE_LOST), LOST),
        ((FILE_LOST, LOST), FILE_LOST),
    ],
)
def test_one_failure_is_raised_as_itself(errors, raised):
    """Also if several tasks have met it; a lost directory is met by each of its files."""
    with pytest.raises(type(raised)) as found, as_itself():
        raise group(*errors)
    assert found.value is raised


def test_two_failures_stay_a_group():
    """Neither of them is the other's consequence, as far as anybody knows."""
    with pytest.raises(ExceptionGroup), as_itself():
        raise group(FULL, LOST)

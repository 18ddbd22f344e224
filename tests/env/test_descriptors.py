"""Spare descriptors: a file is opened although no other descriptor is left."""

import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest

from hastore.env import descriptors
from hastore.env.descriptors import keep_spare, open_descriptor, spare_count
from hastore.env.real import real_env
from hastore.errors import DiskError
from hastore.flush.checkpoint_flusher import is_out_of_descriptors

SPARE = 4


@pytest.fixture
def exhausted():
    """Keep spare descriptors, and take all others; return what gives one back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    keep_spare(SPARE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, before[1]))
    taken = []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017 - the loop's end
                break
        yield lambda count: [os.close(taken.pop()) for _ in range(count)]
    finally:
        for descriptor in taken:
            os.close(descriptor)
        keep_spare(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_small_files_and_a_log_file_are_written_with_spare_descriptors(tmp_path, exhausted):
    """A role change writes small files; the next log file takes two, one of them for its map."""
    disk = real_env().disk
    for number in range(10):
        disk.write_file(str(tmp_path / "identity.json"), b"%d" % number)
    assert disk.read_file(str(tmp_path / "identity.json")) == b"9"
    file = disk.create_file(str(tmp_path / "00000000000000000000"), 8_192)
    file.close()


def test_the_reserve_is_filled_again_once_there_are_descriptors(tmp_path, exhausted):
    """Whoever opens a file then does it."""
    opened = [open_descriptor(os.devnull, os.O_RDONLY) for _ in range(SPARE)]
    assert spare_count() == 0
    with pytest.raises(OSError, match="Too many open files"):
        open_descriptor(os.devnull, os.O_RDONLY)
    exhausted(2)
    for descriptor in opened:
        os.close(descriptor)
    os.close(open_descriptor(os.devnull, os.O_RDONLY))
    assert spare_count() == SPARE


def test_without_any_the_error_says_so(tmp_path, exhausted):
    """Callers shed clients then."""
    opened = [open_descriptor(os.devnull, os.O_RDONLY) for _ in range(SPARE)]
    with pytest.raises(DiskError, match="Too many open files") as caught:
        real_env().disk.create_file(str(tmp_path / "f"), 4_096)
    assert is_out_of_descriptors(caught.value)
    for descriptor in opened:
        os.close(descriptor)


def test_a_thread_that_comes_second_gets_one_of_the_released(exhausted):
    """The first one has released all, and taken one."""
    first = []

    def call():
        if not first:  # the other thread is faster
            with contextlib.suppress(OSError):
                os.close(os.open(os.devnull, os.O_RDONLY))
                pytest.fail("there was one")
            first.append(open_descriptor(os.devnull, os.O_RDONLY))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return os.open(os.devnull, os.O_RDONLY)

    os.close(descriptors._with_spare(call))
    os.close(first[0])

"""RocketMQ's ConsumeQueueExt, read."""

import struct

import pytest

from hastore.store.queue.ext import ConsumeQueueExt, ExtUnit, is_ext_address
from tests.support.env.fake_disk import FakeDisk

LEAST = -(2**63)
FILE_SIZE = 256


def ext_unit(tags_code, store_timestamp_ms, bitmap=b"", *, size=None):
    head = (20 + len(bitmap) if size is None else size, tags_code, store_timestamp_ms, len(bitmap))
    return struct.pack(">hqqh", *head) + bitmap


def open_ext(*images):
    disk = FakeDisk()
    for index, image in enumerate(images):
        name = f"{index * FILE_SIZE:020d}"
        disk.put(f"/d/consumequeue_ext/t/3/{name}", image.ljust(FILE_SIZE, b"\0"))
    return disk, ConsumeQueueExt(disk, "/d", "t", 3)


@pytest.mark.parametrize(
    ("tags_code", "is_address"),
    [(0, False), (-(2**31), False), (2**63 - 1, False), (-(2**31) - 1, True), (LEAST, True)],
)
def test_an_address_is_below_every_hash_code(tags_code, is_address):
    """Hash codes are 32-bit numbers, due times of delayed messages are above 0."""
    assert is_ext_address(tags_code) is is_address


def test_units_are_found_by_their_address():
    """In any file, with and without a bitmap."""
    first = ext_unit(77, 1_700_000_000_000) + ext_unit(-5, 1, b"\1\2\3")
    _, ext = open_ext(first, ext_unit(9, 2))
    assert ext.get(LEAST) == ExtUnit(77, 1_700_000_000_000, b"")
    assert ext.get(LEAST + 20) == ExtUnit(-5, 1, b"\1\2\3")
    assert ext.get(LEAST + FILE_SIZE) == ExtUnit(9, 2, b"")


@pytest.mark.parametrize("address", [5, LEAST + 23, LEAST + 43, LEAST + FILE_SIZE - 3])
def test_where_no_unit_stands_there_is_none(address):
    """Not an address, the end mark, zeros, and the last bytes of a file."""
    first = ext_unit(-5, 1, b"\1\2\3") + struct.pack(">h", -1)
    _, ext = open_ext(first)
    assert ext.get(address) is None


@pytest.mark.parametrize(
    "image",
    [ext_unit(1, 1, b"abc", size=20), ext_unit(1, 1, size=-3), struct.pack(">hqqh", 19, 1, 1, -1)],
)
def test_a_damaged_unit_is_none(image):
    """Its two sizes do not agree."""
    _, ext = open_ext(image)
    assert ext.get(LEAST) is None


def test_a_bitmap_beyond_the_files_end_is_none():
    """Half a unit says nothing."""
    _, ext = open_ext(b"\0" * 230 + ext_unit(1, 1, b"x" * 6), ext_unit(2, 2))
    assert ext.get(LEAST + 230) == ExtUnit(1, 1, b"x" * 6)
    _, ext = open_ext((b"\0" * 230 + ext_unit(1, 1, b"x" * 100))[:FILE_SIZE])
    assert ext.get(LEAST + 230) is None


def test_files_that_are_made_later_are_found():
    """The directory is listed again where an address lies in no known file."""
    disk, ext = open_ext()
    assert ext.get(LEAST) is None
    disk.put(f"/d/consumequeue_ext/t/3/{0:020d}", ext_unit(4, 4))
    disk.put("/d/consumequeue_ext/t/3/note", b"")
    assert ext.get(LEAST) == ExtUnit(4, 4, b"")

"""JsonFile: one of two copies is always readable, and reading never raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import DiskError
from hastore.store.json_file import JsonFile
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import disk_full

PATH = "/d/config/topics.json"


def test_what_was_stored_is_loaded_again():
    """Stored values come back from a fresh object, and nothing is there before."""
    disk = FakeDisk()
    assert JsonFile(disk, PATH).load() == {}
    JsonFile(disk, PATH).store({"a@g": {"0": 7}, "ü": None})
    assert JsonFile(disk, PATH).load() == {"a@g": {"0": 7}, "ü": None}


def test_bare_integer_keys_are_read():
    """What Java's fastjson writes for a map with integer keys is read."""
    disk = FakeDisk()
    disk.put(PATH, b'{"offsetTable":{"t@g":{0:12,1:-1}}}')
    assert JsonFile(disk, PATH).load() == {"offsetTable": {"t@g": {"0": 12, "1": -1}}}


@pytest.mark.parametrize("torn", [b"", bytes(20), b'{"a": ', b"[1]", b"\xff\xfe"])
def test_a_torn_file_gives_its_backup(torn):
    """Whatever the main file holds, the previous content is loaded, and never overwritten by it."""
    disk = FakeDisk()
    file = JsonFile(disk, PATH)
    file.store({"n": 1})
    file.store({"n": 2})
    disk.put(PATH, torn)
    again = JsonFile(disk, PATH)
    assert again.load() == {"n": 1}
    again.store({"n": 3})
    assert disk.read_file(PATH + ".torn") == torn
    assert JsonFile(disk, PATH + ".bak").load() == {"n": 1}
    assert JsonFile(disk, PATH).load() == {"n": 3}


def test_two_torn_files_are_an_empty_object():
    """The start goes on without what neither copy gives."""
    disk = FakeDisk()
    disk.put(PATH, b"{")
    disk.put(PATH + ".bak", b"{")
    assert JsonFile(disk, PATH).load() == {}


def test_a_disk_that_does_not_read_gives_the_backup(monkeypatch):
    """A read error on the main file is as good as a torn one."""
    disk = FakeDisk()
    disk.put(PATH, b"{}")
    disk.put(PATH + ".bak", b'{"n": 1}')
    read = disk.read_file

    def broken(_, path):
        if path == PATH:
            raise DiskError("cannot read: Input/output error", path=path)
        return read(path)

    monkeypatch.setattr(FakeDisk, "read_file", broken)
    assert JsonFile(disk, PATH).load() == {"n": 1}


def test_a_write_that_fails_leaves_the_old_content():
    """What a full disk refused leaves the previous content, and the next store works."""
    disk = FakeDisk()
    file = JsonFile(disk, PATH)
    file.store({"n": 1})
    disk.fail("write_file", disk_full())
    for _ in range(2):
        with pytest.raises(DiskError):
            file.store({"n": 2})
        assert JsonFile(disk, PATH).load() == {"n": 1}
    disk.heal()
    file.store({"n": 2})
    assert JsonFile(disk, PATH).load() == {"n": 2}


@given(st.integers(0, 40), st.booleans())
def test_a_cut_at_any_byte_is_one_of_the_two(size, keep_backup):
    """A file cut anywhere gives the whole content, the backup or nothing, never an error."""
    disk = FakeDisk()
    file = JsonFile(disk, PATH)
    file.store({"n": 1})
    file.store({"n": 2, "text": "ab"})
    disk.put(PATH, disk.read_file(PATH)[:size])
    if not keep_backup:
        disk.remove(PATH + ".bak")
    assert JsonFile(disk, PATH).load() in ({"n": 2, "text": "ab"}, {"n": 1} if keep_backup else {})

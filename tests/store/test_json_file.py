"""JsonFile: one of two copies is always readable, and reading never raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import DiskError
from hastore.store.json_file import JsonFile
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import disk_full

PATH = "/d/config/topics.json"


def test_loads_what_was_stored():
    """Another object loads the stored values; before the first store, there are none."""
    disk = FakeDisk()
    assert JsonFile(disk, PATH).load() == {}
    JsonFile(disk, PATH).store({"a@g": {"0": 7}, "ü": None})
    assert JsonFile(disk, PATH).load() == {"a@g": {"0": 7}, "ü": None}


def test_loads_bare_integer_keys():
    """Java's fastjson writes maps with integer keys in this form."""
    disk = FakeDisk()
    disk.put(PATH, b'{"offsetTable":{"t@g":{0:12,1:-1}}}')
    assert JsonFile(disk, PATH).load() == {"offsetTable": {"t@g": {"0": 12, "1": -1}}}


@pytest.mark.parametrize("torn", [b"", bytes(20), b'{"a": ', b"[1]", b"\xff\xfe"])
def test_loads_the_backup_of_a_torn_file(torn):
    """The next store keeps that backup instead of overwriting it with the torn file."""
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


def test_two_torn_files_load_as_an_empty_object():
    """A start continues without the lost content."""
    disk = FakeDisk()
    disk.put(PATH, b"{")
    disk.put(PATH + ".bak", b"{")
    assert JsonFile(disk, PATH).load() == {}


def test_loads_the_backup_after_a_read_error(monkeypatch):
    """A read error counts like a torn file."""
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


def test_failed_write_keeps_the_previous_content():
    """The next store works once the disk has room."""
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
def test_file_cut_at_any_byte_loads_without_an_error(size, keep_backup):
    """The result is the whole content, the backup or nothing."""
    disk = FakeDisk()
    file = JsonFile(disk, PATH)
    file.store({"n": 1})
    file.store({"n": 2, "text": "ab"})
    disk.put(PATH, disk.read_file(PATH)[:size])
    if not keep_backup:
        disk.remove(PATH + ".bak")
    assert JsonFile(disk, PATH).load() in ({"n": 2, "text": "ab"}, {"n": 1} if keep_backup else {})

"""JsonFile: one of two copies is always readable, and a start refuses what no crash leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import DiskError, TableFileError
from hastore.store.json_file import JsonFile
from tests.store.whole_store import config_of, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
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


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"T@g":{0:5,}}}',
        "{'offsetTable':{'T@g':{'0':5}}}",
        '\ufeff{"offsetTable":{"T@g":{0:5}}}',
    ],
)
def test_a_file_edited_by_hand_is_read_as_rocketmq_reads_it(text):
    """Taken for torn, it cost the offsets of all groups."""
    disk = FakeDisk()
    disk.put(PATH, text.encode())
    file = JsonFile(disk, PATH)
    assert file.check(("offsetTable",)) is None
    assert file.load() == {"offsetTable": {"T@g": {"0": 5}}}


@pytest.mark.parametrize("torn", [b"", bytes(20), b'{"a": ', b'{"a": "b', b'{"a\0\0b": 1}'])
def test_the_check_says_what_is_read_instead_of_a_torn_file(torn):
    """A missing file is not torn: a kill between a store's two steps leaves only the backup."""
    disk = FakeDisk()
    assert JsonFile(disk, PATH).check() is None
    disk.put(PATH, torn)
    assert JsonFile(disk, PATH).check().endswith("; starting without it: no backup")
    disk.put(PATH + ".bak", b'{"n": 1}')
    assert JsonFile(disk, PATH).check().endswith(f"; {PATH}.bak")
    disk.remove(PATH)
    assert JsonFile(disk, PATH).check() is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{\n "offsetTable": {"T@g": {0: 5}} "x": 1}', "line 2, column 33: neither , nor }"),
        (b"[]", "line 1, column 1: not an object"),
        (b'{"offsetTable": [1]}', "offsetTable is not an object"),
        ('{"offsetTable": {}}'.encode("utf-16"), "line 1, column 1: not UTF-8"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".bak"])
async def test_a_whole_table_that_cannot_be_read_stops_the_start(
    content, reason, suffix, autojump_clock
):
    """So does such a backup of a torn table.  Nothing is changed, and the directory is free."""
    disk = FakeDisk()
    env = fake_env(disk)
    open_store(env, config_of()).close(clean=True)
    path = "/d/config/consumerOffset.json"
    disk.put(path, b"")
    disk.put(path + suffix, content)
    before = disk.files("/d/")
    for _ in range(2):
        with pytest.raises(TableFileError) as caught:
            open_store(env, config_of())
        assert caught.value.exit_code == 4
        assert caught.value.path == path + suffix
        assert f"{path}{suffix}: {reason}" in str(caught.value)
    assert disk.files("/d/") == before
    disk.put(path + suffix, b"{}")
    open_store(env, config_of()).close(clean=True)

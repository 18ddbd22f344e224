"""The file in which a master without a coordinator keeps its SyncStateSet."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import SyncStateFileError
from hastore.store.sync_state_file import StoredSet, SyncStateFile
from tests.support.env.fake_disk import FakeDisk

PATH = "/d/sync_state_set.json"
STORED = StoredSet(7, frozenset({1, 2, 3}))


def test_file_reads_as_its_documentation_says():
    """A person may have to look at it."""
    lines = STORED.encode().splitlines()
    assert lines[:4] == [
        b"{",
        b' "schema": "hastore.sync-state-set/1",',
        b' "epoch": 7,',
        b' "members": [1, 2, 3],',
    ]
    assert lines[4].startswith(b' "crc32": ')


@given(st.integers(0, 2**31 - 1), st.frozensets(st.integers(1, 2**63 - 1), min_size=1))
def test_a_set_is_read_as_it_was_written(epoch, members):
    """Ids are 64 bits wide."""
    assert StoredSet.decode(StoredSet(epoch, members).encode()) == StoredSet(epoch, members)


@given(st.data())
def test_no_damaged_file_is_taken_for_a_set(data):
    """Neither a changed byte nor a torn end."""
    good = STORED.encode()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.sampled_from([b"", b"\0", b"9"]))
    bad += good[at + 1 :] if data.draw(st.booleans()) else b""
    assert bad == good or isinstance(StoredSet.decode(bad), str)


def signed(text):
    covered = text.encode()
    return b'%s "crc32": %d\n}\n' % (covered, zlib.crc32(covered))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{\n "schema": "other/1",\n', "schema is 'other/1'"),
        ('{\n "schema": "hastore.sync-state-set/1",\n "members": [1],\n', "epoch is None"),
        ('{\n "schema": "hastore.sync-state-set/1",\n "epoch": true,\n', "epoch is True"),
        ('{\n "schema": "hastore.sync-state-set/1",\n "epoch": 1,\n', "members are None"),
        (
            '{\n "schema": "hastore.sync-state-set/1",\n "epoch": 1,\n "members": [],\n',
            "members are \\[\\]",
        ),
        (
            '{\n "schema": "hastore.sync-state-set/1",\n "epoch": 1,\n "members": [0],\n',
            "members are \\[0\\]",
        ),
    ],
)
def test_a_foreign_content_is_an_error_that_names_it(text, why):
    """Its checksum is right."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    disk.write_file(PATH, signed(text))
    with pytest.raises(SyncStateFileError, match=f"{PATH}: its {why}"):
        SyncStateFile(disk, PATH).load()


def test_the_set_stored_last_is_loaded():
    """None before the first one."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    file = SyncStateFile(disk, PATH)
    assert file.load() is None
    file.store(STORED)
    file.store(StoredSet(8, frozenset({1})))
    assert SyncStateFile(disk, PATH).load() == StoredSet(8, frozenset({1}))

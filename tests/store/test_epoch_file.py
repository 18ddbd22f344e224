"""The file of a log's epochs: whole after any crash, and never guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.epoch_history import ENTRIES_MAX, EpochEntry, EpochHistory
from hastore.errors import EpochFileError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile, decode_epochs, encode_epochs
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk

ONE = EpochHistory((EpochEntry(1, 0),))
TWO = EpochHistory((EpochEntry(1, 0), EpochEntry(2, 47_859)))


PATH = f"/d/{EPOCH_FILE}"
BACKUP = f"{PATH}.bak"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it does not begin with a number of epochs and a checksum"),
        (b"\0" * 30, "it does not begin with a number of epochs and a checksum"),
        (b"0\n0", "it does not begin with a number of epochs and a checksum"),
        (b"x\n1\n1-0\n", "it does not begin with a number of epochs and a checksum"),
        (b"\n" * 100_000, "it has 100000 bytes, more than 1000 epochs take"),
        (b"1\n0\n1-0", "its last line does not end with a line feed"),
        (b"2\n0\n1-0\n", "it announces 2 epochs and has 1"),
        (b"1\n1725254279\n1-0\n", "its checksum should be 1725254278, and is 1725254279"),
        (b"1\n0\n1:0\n", "b'1:0' is not EPOCH-OFFSET"),
        (b"1\n0\n-1-0\n", "b'-1-0' is not EPOCH-OFFSET"),
        (b"2\n0\n2-0\n1-5\n", "epoch 1-5 after 2-0: epochs must rise"),
        (b"1\n0\n1-9999999999999999999\n", "epoch 1-9999999999999999999 is out of range"),
        (b"1001\n0\n" + b"".join(b"%d-%d\n" % (n, n) for n in range(1001)), "more than 1000"),
    ],
)
def test_a_damaged_file_is_named(data, fault):
    """With what is wrong in it."""
    found = decode_epochs(data)
    assert isinstance(found, str)
    assert fault in found


def test_a_file_without_checksum_is_read():
    """RocketMQ takes 0 for "not checked"."""
    assert decode_epochs(b"1\n0\n1-0\n") == ONE


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**15)), max_size=ENTRIES_MAX),
    st.data(),
)
def test_what_is_written_is_read_and_a_torn_file_is_not(steps, data):
    """Whichever epochs, cut at whichever byte."""
    epoch = offset = 0
    entries = []
    for epochs_later, bytes_later in steps:
        if epoch + epochs_later >= 1 << 31 or offset + bytes_later >= 1 << 63:
            break
        epoch, offset = epoch + epochs_later, offset + bytes_later
        entries.append(EpochEntry(epoch, offset))
    history = EpochHistory(tuple(entries))
    whole = encode_epochs(history)
    assert decode_epochs(whole) == history
    size = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(decode_epochs(whole[:size]), str)


def test_loads_what_was_stored():
    """Before the first time there are none."""
    disk = FakeDisk()
    assert EpochFile(disk, PATH).load() == EpochHistory()
    for history in (ONE, TWO, EpochHistory()):
        EpochFile(disk, PATH).store(history)
        assert EpochFile(disk, PATH).load() == history


def test_a_kill_leaves_the_old_epochs_or_the_new_ones():
    """At each step, and within each write; also where RocketMQ has left its backup."""
    disk = FakeDisk()
    disk.put(PATH, encode_epochs(ONE))
    disk.put(BACKUP, encode_epochs(EpochHistory()))
    found, step = [], 0
    while True:
        left = []
        for written in range(len(encode_epochs(TWO)) + 1):
            dying = DyingDisk.of(disk, step, written)
            try:
                EpochFile(dying, PATH).store(TWO)
            except Killed:
                left.append(EpochFile(dying.kill(), PATH).load())
        if not left:
            break
        found += left
        step += 1
    assert step > 1
    assert ONE in found
    assert TWO in found
    assert all(history in {ONE, TWO} for history in found)


def test_a_stored_file_has_no_backup_that_could_stand_in_for_it():
    """Out of date, it would hide an epoch where the disk damages the file later."""
    disk = FakeDisk()
    disk.put(BACKUP, encode_epochs(ONE))
    EpochFile(disk, PATH).store(TWO)
    assert sorted(disk.files("/d/")) == [EPOCH_FILE]


@pytest.mark.parametrize("torn", [None, b"", b"2\n1485490322\n1-0\n"])
def test_loads_the_backup_where_rocketmq_was_killed_while_it_wrote(torn):
    """The file is missing, empty or short then."""
    disk = FakeDisk()
    disk.put(BACKUP, encode_epochs(ONE))
    if torn is not None:
        disk.put(PATH, torn)
    file = EpochFile(disk, PATH)
    assert file.load() == ONE
    assert file.loaded_from == BACKUP


@pytest.mark.parametrize(
    ("data", "backup", "fault"),
    [
        (b"2\n1\n1-0\n", None, f"{PATH}: it announces 2 epochs and has 1"),
        (b"2\n1\n1-0\n", b"", f"{PATH}: it announces 2 epochs and has 1"),
        (None, b"", f"{PATH}: it is missing, and of {BACKUP}: it does not begin with a number"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(data, backup, fault):
    """It is not an empty log's: a node without epochs takes any master's."""
    disk = FakeDisk()
    for path, content in ((PATH, data), (BACKUP, backup)):
        if content is not None:
            disk.put(path, content)
    with pytest.raises(EpochFileError) as caught:
        EpochFile(disk, PATH).load()
    assert fault in str(caught.value)
    assert caught.value.path == PATH
    assert "copy the file from another node of the group" in caught.value.hint

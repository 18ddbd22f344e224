"""What a node has of its group's log: messages counted by topic, and its answer as JSON."""

import json

import pytest

from hastore.epoch_history import EpochEntry, EpochHistory, EpochSpan
from hastore.errors import ProtocolError
from hastore.store.recovery.log_cut import LogCut
from hastore.store.tools.group_log import GroupLog, count_messages
from tests.support.store.log_builder import LogBuilder, disk_with

CUT = LogCut(
    physic_offset=100,
    end_offset=300,
    reason="the group went on without it",
    time_ms=5,
    epochs=(EpochSpan(1, 100, 300),),
    messages={"orders": 2},
    saved_paths=("trimmed/x",),
)
LOG = GroupLog(
    epochs=EpochHistory((EpochEntry(1, 0), EpochEntry(3, 100))),
    min_offset=0,
    end_offset=900,
    confirm_offset=None,
    cuts=(CUT,),
)


def test_messages_are_counted_in_pieces():
    """Each request walks a part of the log, and says where the next one goes on."""
    builder = LogBuilder().fill(5, topic="a").fill(7, topic="b")
    first = builder.offsets[0]
    begin, end, pieces, total = first, builder.end, 0, {}
    while begin < end:
        counted = count_messages(builder.on_disk(), "/d", begin, end, size_max=200)
        assert begin < counted.next_offset <= end
        assert counted.unread_from is None
        begin, pieces = counted.next_offset, pieces + 1
        for topic, count in counted.messages.items():
            total[topic] = total.get(topic, 0) + count
    assert (total, pieces > 2) == ({"a": 5, "b": 7}, True)


def test_only_whole_messages_count():
    """A range may end in the middle of one."""
    builder = LogBuilder().fill(2)
    for end, count in ((builder.end, 2), (builder.end - 1, 1), (builder.offsets[1] + 40, 1)):
        counted = count_messages(builder.on_disk(), "/d", 0, end)
        assert (counted.messages, counted.unread_from) == ({"orders": count}, None)


@pytest.mark.parametrize("missing", [1, 20, 100, 200])
def test_a_message_that_has_only_begun_is_not_unread(missing):
    """A slave's log may end anywhere: nothing whole is in the rest."""
    builder = LogBuilder().fill(3)
    end = builder.end - missing
    counted = count_messages(builder.on_disk(builder.data[:-missing]), "/d", 0, end)
    assert (counted.messages, counted.unread_from) == ({"orders": 2}, None)


def damaged(builder):
    """The second message has another size; reading resumes at the third one."""
    return builder.on_disk(builder.flipped(builder.offsets[1] + 1)), builder.offsets[1], 3


def zeroed(builder):
    """Nothing is left from the third message on."""
    at = builder.offsets[2]
    return builder.on_disk(builder.data[:at] + bytes(builder.end - at)), at, 2


def without_a_file(builder):
    """The first file has expired since the range was chosen."""
    files = builder.files()
    first = min(files)
    left = sum(offset >= builder.file_size for offset in builder.offsets)
    return disk_with(d={name: files[name] for name in files if name != first}), 0, left


@pytest.mark.parametrize("damage", [damaged, zeroed, without_a_file])
@pytest.mark.parametrize("size_max", [150, 1 << 20])
def test_a_count_says_where_it_is_a_lower_bound(damage, size_max):
    """The first offset that could not be read, whichever piece of the log it is in."""
    builder = LogBuilder().fill(4 if damage is not without_a_file else 40)
    disk, unread_from, expected = damage(builder)
    begin, total, unread = 0, 0, []
    while begin < builder.end:
        counted = count_messages(disk, "/d", begin, builder.end, size_max=size_max)
        begin, total = counted.next_offset, total + sum(counted.messages.values())
        unread.append(counted.unread_from)
    assert (min(each for each in unread if each is not None), total) == (unread_from, expected)


def test_a_node_says_what_it_has_in_json():
    """And is read back."""
    assert GroupLog.from_json(json.loads(json.dumps(LOG.to_json()))) == LOG


def test_a_cut_of_an_earlier_version_is_read():
    """It does not say whether damage has ended its count."""
    value = CUT.to_json()
    del value["unread_from"]
    assert LogCut.from_json(value) == CUT
    assert LogCut.from_json(value | {"unread_from": 200}).unread_from == 200


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": [[3, 100], [1, 0]]},
        {"epochs": [1]},
        {"epochs": None},
        {"end": "x"},
        {"cuts": [{}]},
        {"cuts": None},
    ],
)
def test_an_answer_that_cannot_be_understood_is_named(change):
    """Whoever has sent it."""
    with pytest.raises(ProtocolError, match="what a node says of its log cannot be understood"):
        GroupLog.from_json(LOG.to_json() | change)

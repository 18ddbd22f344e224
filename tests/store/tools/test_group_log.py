"""What a node has of its group's log: messages counted by topic, and its answer as JSON."""

import json

import pytest

from hastore.epoch_history import EpochEntry, EpochHistory, EpochSpan
from hastore.errors import ProtocolError
from hastore.store.recovery.log_cut import LogCut
from hastore.store.tools.group_log import GroupLog, count_messages
from tests.support.store.log_builder import LogBuilder

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
        counts, at = count_messages(builder.on_disk(), "/d", begin, end, size_max=200)
        assert begin < at <= end
        begin, pieces = at, pieces + 1
        for topic, count in counts.items():
            total[topic] = total.get(topic, 0) + count
    assert (total, pieces > 2) == ({"a": 5, "b": 7}, True)


def test_only_whole_messages_count():
    """A range may end in the middle of one."""
    builder = LogBuilder().fill(2)
    assert sum(count_messages(builder.on_disk(), "/d", 0, builder.end)[0].values()) == 2
    assert sum(count_messages(builder.on_disk(), "/d", 0, builder.end - 1)[0].values()) == 1


def test_a_node_says_what_it_has_in_json():
    """And is read back."""
    assert GroupLog.from_json(json.loads(json.dumps(LOG.to_json()))) == LOG


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

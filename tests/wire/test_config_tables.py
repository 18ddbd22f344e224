"""Topics and groups as JSON values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ProtocolError
from hastore.wire.config_tables import DataVersion, SubscriptionGroupConfig, TopicConfig

# As RocketMQ 5 writes it: with a field that 4.9 does not have.
STOCK_TOPIC = {
    "attributes": {"+message.type": "NORMAL"},
    "order": False,
    "perm": 6,
    "readQueueNums": 16,
    "topicFilterType": "SINGLE_TAG",
    "topicName": "T",
    "topicSysFlag": 0,
    "writeQueueNums": 8,
}

anything = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.integers())


def test_a_topic_keeps_unknown_fields():
    """The fields of a later RocketMQ are written as they were read."""
    topic = TopicConfig.from_dict("T", STOCK_TOPIC)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (16, 8, 6)
    assert topic.to_dict() == STOCK_TOPIC
    assert TopicConfig.from_dict("T", topic.to_dict()) == topic


def test_a_group_has_rocketmqs_defaults_and_keeps_unknown_fields():
    """A missing field has RocketMQ's default value."""
    group = SubscriptionGroupConfig.from_dict({"groupName": "g", "groupSysFlag": 3})
    assert (group.group, group.retry_max_times, group.retry_queue_nums) == ("g", 16, 1)
    assert group.consume_enable
    assert group.to_dict()["groupSysFlag"] == 3
    assert SubscriptionGroupConfig.from_dict(group.to_dict()) == group


@pytest.mark.parametrize("nums", [-1, 65_536, "x", None])
def test_an_invalid_number_of_queues_is_refused(nums):
    """A topic has 0 to 65,535 queues."""
    with pytest.raises(ProtocolError, match="readQueueNums"):
        TopicConfig.from_dict("T", STOCK_TOPIC | {"readQueueNums": nums})


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(STOCK_TOPIC, anything)),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(SubscriptionGroupConfig(group="g").to_dict(), anything)
    ),
    anything,
)
def test_random_values_are_read_or_raise_protocol_error(topic, group, version):
    """A value that is read can be written and read again unchanged."""
    counted = {"counter": version, "timestamp": version}
    for read, value in (
        (lambda value: TopicConfig.from_dict("T", value), topic),
        (SubscriptionGroupConfig.from_dict, group),
        (lambda value: SubscriptionGroupConfig.from_dict(value, "g"), group),
        (DataVersion.from_dict, counted),
        (DataVersion.from_dict, version),
    ):
        try:
            found = read(value)
        except ProtocolError:
            continue
        assert read(found.to_dict()) == found

"""A master's tables are read whole or not at all: as RocketMQ and hastore write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.broker.groups.copied_tables import (
    read_consumer_offsets,
    read_delay_offsets,
    read_groups,
    read_topics,
)
from hastore.errors import ProtocolError
from hastore.wire.config_tables import DataVersion

READERS = (read_topics, read_groups, read_consumer_offsets, read_delay_offsets)


def test_the_topics_of_a_rocketmq_5_master_are_read():
    """With stateVersion, attributes and the tables of static topics, which hastore does not use."""
    table = read_topics(
        b'{"dataVersion":{"counter":7,"stateVersion":3,"timestamp":1700000000000},'
        b'"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1},'
        b'"topicConfigTable":{'
        b'"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":16,"topicFilterType":'
        b'"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":8},'
        b'"TBW102":{"order":false,"perm":7,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"TBW102","topicSysFlag":0,"writeQueueNums":8},'
        b'"a b":{"perm":6,"readQueueNums":1,"writeQueueNums":1}},'
        b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}'
    )
    assert table.version == DataVersion(counter=7, state_version=3, timestamp_ms=1700000000000)
    assert {name: (t.read_queue_nums, t.write_queue_nums) for name, t in table.rows.items()} == {
        "T": (16, 8),
        "TBW102": (8, 8),
    }
    assert table.rows["T"].other_fields == {"attributes": {}}
    assert table.left_out == ("a b",)


def test_topic_tables_that_a_rocketmq_name_server_took_are_read(recorded_golden):
    """Brokers register with the same JSON as they answer 21 with."""
    path = recorded_golden / "autoswitch" / "namesrv" / "cases.json"
    bodies = [
        json.loads(case["body"])["topicConfigSerializeWrapper"]
        for case in json.loads(path.read_text())
        if case.get("code") == 103 and case.get("body")
    ]
    assert bodies
    for body in bodies:
        table = read_topics(json.dumps(body).encode())
        assert table.rows.keys() == body["topicConfigTable"].keys()
        assert table.version is not None
        assert table.version.to_dict() == body["dataVersion"]


def test_the_other_tables_of_a_java_master_are_read():
    """4.9 sends no version with offsets, and bare integer keys; -1 means that there is none."""
    groups = read_groups(
        b'{"dataVersion":{"counter":1,"timestamp":5},"subscriptionGroupTable":{'
        b'"g":{"brokerId":0,"consumeEnable":false,"groupName":"g","retryMaxTimes":3}}}'
    )
    assert groups.rows["g"].retry_max_times == 3
    assert not groups.rows["g"].consume_enable
    offsets = read_consumer_offsets(
        b'{"offsetTable":{"T@g":{0:5,1:7,2:-1},"%RETRY%g@g":{0:0},"odd":{0:1},"@":{0:1}}}'
    )
    assert offsets.version is None
    assert offsets.rows == {"T@g": {0: 5, 1: 7}, "%RETRY%g@g": {0: 0}}
    assert offsets.left_out == ("odd", "@")
    assert read_delay_offsets(b'{"offsetTable":{1:5,3:0,18:7}}') == {1: 5, 3: 0, 18: 7}


@pytest.mark.parametrize(
    ("read", "body", "named"),
    [
        (read_topics, b"", "not JSON"),
        (read_topics, b"[]", "not a JSON object"),
        (read_topics, b"{}", "topicConfigTable"),
        (read_topics, b'{"topicConfigTable":{"T":5}}', "row 'T'"),
        (read_topics, b'{"topicConfigTable":{"T":{"readQueueNums":-1}}}', "readQueueNums"),
        (read_topics, b'{"topicConfigTable":{},"dataVersion":7}', "dataVersion"),
        (read_topics, b'{"topicConfigTable":{},"dataVersion":{"counter":"x"}}', "counter"),
        (read_groups, b'{"subscriptionGroupTable":{"g":{"retryQueueNums":[]}}}', "row 'g'"),
        (read_consumer_offsets, b'{"offsetTable":{"T@g":[1]}}', "row 'T@g'"),
        (read_consumer_offsets, b'{"offsetTable":{"T@g":{"x":1}}}', "row 'T@g'"),
        (read_consumer_offsets, b'{"offsetTable":{"T@g":{"0":1.5}}}', "not an integer"),
        (read_consumer_offsets, b'{"offsetTable":{"T@g":{"0":9223372036854775808}}}', "64 bits"),
        (read_consumer_offsets, b'{"offsetTable":{"T@g":{"65535":1}}}', "65534"),
        (read_delay_offsets, b'{"offsetTable":null}', "offsetTable"),
        (read_delay_offsets, b'{"offsetTable":{"1":true}}', "not an integer"),
        (read_delay_offsets, b'{"offsetTable":{"-1":1}}', "-1 is not in"),
    ],
)
def test_a_malformed_table_is_refused_by_name(read, body, named):
    """The error says what is wrong with it."""
    with pytest.raises(ProtocolError) as caught:
        read(body)
    assert named in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
names = st.sampled_from(
    ["topicConfigTable", "subscriptionGroupTable", "offsetTable", "dataVersion", "T@g", "0"]
)


@given(st.dictionaries(names, st.dictionaries(names | st.text(max_size=3), anything) | anything))
def test_any_json_is_read_or_refused(value):
    """No other exception gets out."""
    body = json.dumps(value).encode()
    for read in READERS:
        try:
            read(body)
        except ProtocolError:
            continue

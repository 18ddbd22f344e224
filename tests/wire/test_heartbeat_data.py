"""Heartbeats as stock clients write them, and invalid ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ProtocolError
from hastore.wire.heartbeat_data import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    Subscription,
)
from hastore.wire.heartbeat_data import (
    read_heartbeat as read_in_pieces,
)
from hastore.wire.pieces import at_once

CPP = (
    b'{"clientID":"3454-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,'
    b'"consumeType":1,"groupName":"g","messageModel":1,"subscriptionDataSet":[{"subString":"*",'
    b'"subVersion":"1795251676784","topic":"T"}]}],"producerDataSet":[{"groupName":"p"}]}\n'
)
JS = (
    b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g",'
    b'"consumeType":"CONSUME_PASSIVELY","messageModel":"BROADCASTING",'
    b'"consumeFromWhere":"CONSUME_FROM_TIMESTAMP","subscriptionDataSet":[{"topic":"T",'
    b'"subString":"a || b","tagsSet":["a","b"],"codeSet":[97,98],"subVersion":5,'
    b'"expressionType":"TAG"}],"unitMode":false}]}'
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)
heartbeats = st.builds(
    HeartbeatData,
    client_id=names,
    producer_groups=st.lists(names, max_size=2).map(tuple),
    consumers=st.lists(
        st.builds(
            ConsumerData,
            group=names,
            consume_type=st.sampled_from(ConsumeType),
            message_model=st.sampled_from(MessageModel),
            consume_from_where=st.sampled_from(ConsumeFromWhere),
            subscriptions=st.lists(
                st.builds(Subscription, topic=names, expression=names, version=st.integers(0, 9)),
                max_size=3,
            ).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
)


def read_heartbeat(body):
    """Read it at once."""
    return at_once(read_in_pieces(body))


@given(heartbeats)
def test_a_written_heartbeat_is_read_back(heartbeat):
    """Both are equal, for any names and enums."""
    assert read_heartbeat(json.dumps(heartbeat.to_dict()).encode()) == heartbeat


def test_a_heartbeat_of_the_cpp_client_is_read():
    """It has enums as numbers, a version as text and a newline at the end."""
    assert read_heartbeat(CPP) == HeartbeatData(
        client_id="3454-127.0.0.1@DEFAULT",
        producer_groups=("p",),
        consumers=(
            ConsumerData(
                group="g",
                subscriptions=(Subscription(topic="T", expression="*", version=1_795_251_676_784),),
            ),
        ),
    )


def test_a_heartbeat_of_the_js_client_is_read():
    """It has enums by name."""
    (consumer,) = read_heartbeat(JS).consumers
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.consume_from_where is ConsumeFromWhere.TIMESTAMP
    assert consumer.subscriptions[0].expression == "a || b"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"consumerDataSet":[]}', "clientID is missing"),
        (b'{"clientID":""}', "0 characters"),
        (b'{"clientID":"c","consumerDataSet":{"a":1}}', "not a list"),
        (b'{"clientID":"c","consumerDataSet":[1]}', "not a list of objects"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}', "consumeType"),
        (
            b'{"clientID":"c","consumerDataSet":[' + b'{"groupName":"g"},' * 256 + b'{"g":1}]}',
            "257 entries",
        ),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
            + b'{"topic":"T"},' * 1024
            + b'{"topic":"T"}]}]}',
            "1025 entries",
        ),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
            + b'{"topic":"T","expressionType":"%b"}]}]}' % (b"x" * 256),
            "expressionType has 256 characters",
        ),
        (b" " * (1 << 20) + b"{}", "heartbeat of"),
    ],
)
def test_an_invalid_heartbeat_is_refused(body, named):
    """The error names the heartbeat and its fault."""
    with pytest.raises(ProtocolError, match=named) as caught:
        read_heartbeat(body)
    assert "heartbeat" in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "clientID",
                    "consumerDataSet",
                    "groupName",
                    "consumeType",
                    "subscriptionDataSet",
                    "topic",
                    "subString",
                    "subVersion",
                ]
            ),
            inner,
        )
    ),
    max_leaves=10,
)


@given(anything.map(lambda value: json.dumps(value).encode()) | st.binary())
def test_random_bodies_are_read_or_raise_protocol_error(body):
    """A heartbeat that is read has a client id."""
    try:
        heartbeat = read_heartbeat(body)
    except ProtocolError:
        return
    assert heartbeat.client_id

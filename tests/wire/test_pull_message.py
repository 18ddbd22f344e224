"""PULL_MESSAGE's fields and replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ProtocolError
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.pull_message import (
    PullReply,
    PullRequest,
    pull_reply_head,
    read_pull_reply,
    read_pull_request,
    write_pull_fields,
    write_reply_fields,
)
from hastore.wire.remoting_codes import ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand

INT32 = st.integers(1 - 2**31, 2**31 - 1)
INT64 = st.integers(1 - 2**63, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = [
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
    "suspendTimeoutMillis", "subVersion", "subscription", "expressionType",
]  # fmt: skip
# What the C++ client sends: numbers, and 64-bit numbers as text.
STOCK = {
    "AccessKey": "",
    "OnsChannel": "ALIYUN",
    "Signature": "KVxc5edoaJEjT7d7fOU342cCqgc=",
    "commitOffset": "3",
    "consumerGroup": "g",
    "maxMsgNums": 32,
    "queueId": 1,
    "queueOffset": "5",
    "subVersion": "1795251676784",
    "subscription": "*",
    "suspendTimeoutMillis": "15000",
    "sysFlag": 7,
    "topic": "T",
}

requests = st.builds(
    PullRequest,
    group=TEXT,
    topic=TEXT,
    queue_id=INT32,
    queue_offset=INT64,
    count_max=INT32,
    commit_offset=st.none() | st.integers(0, 2**63 - 1),
    suspend_timeout_ms=st.integers(0, 2**63 - 1),
    subscription=st.none() | TEXT,
    subscription_version=INT64,
)


@given(requests)
def test_a_written_pull_request_is_read_back(request):
    """Both are equal, for any values that fit the fields."""
    assert read_pull_request(write_pull_fields(request)) == request


def test_a_pull_request_of_the_cpp_client_is_read():
    """Numbers, numbers as text and unknown fields are accepted."""
    assert read_pull_request(STOCK) == PullRequest(
        group="g",
        topic="T",
        queue_id=1,
        queue_offset=5,
        count_max=32,
        commit_offset=3,
        suspend_timeout_ms=15_000,
        subscription="*",
        subscription_version=1_795_251_676_784,
    )


@pytest.mark.parametrize(
    ("sys_flag", "commit", "suspend", "subscription"),
    [(0, None, 0, None), (1, 3, 0, None), (2, None, 15_000, None), (4, None, 0, "*")],
)
def test_a_field_counts_only_with_its_flag(sys_flag, commit, suspend, subscription):
    """Without its bit in sysFlag a field is ignored."""
    request = read_pull_request(STOCK | {"sysFlag": sys_flag})
    assert request.commit_offset == commit
    assert request.suspend_timeout_ms == suspend
    assert request.subscription == subscription


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"topic": None}, "topic is missing"),
        ({"consumerGroup": []}, "consumerGroup"),
        ({"queueOffset": "x"}, "queueOffset is not an integer"),
        ({"queueId": 2**31}, "queueId does not fit"),
        ({"subscription": "x" * 5000}, "5000 characters"),
        ({"topic": "\ud800"}, "not UTF-8"),
        ({"topic": "x" * 256}, "the topic has 256 characters"),
        ({"consumerGroup": "x" * 256}, "the group has 256 characters"),
    ],
)
def test_the_error_names_the_invalid_field(change, named):
    """It also says what is wrong with it."""
    with pytest.raises(ProtocolError, match=named):
        read_pull_request(STOCK | change)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)


@given(
    st.sampled_from([{}, STOCK]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, anything))
    | st.dictionaries(st.sampled_from(NAMES), anything, max_size=1),
)
def test_random_fields_are_read_or_raise_protocol_error(base, fields):
    """A request that is read has an offset of 64 bits."""
    try:
        request = read_pull_request(base | fields)
    except ProtocolError:
        return
    assert -(2**63) <= request.queue_offset < 2**63


@given(st.builds(PullReply, next_begin_offset=INT64, min_offset=INT64, max_offset=INT64))
def test_the_written_fields_of_a_reply_are_read_back(reply):
    """Both replies are equal."""
    assert read_pull_reply(write_reply_fields(reply)) == reply


@pytest.mark.parametrize("serialize_type", SerializeType)
@given(body=st.binary(max_size=50), remark=TEXT)
def test_the_fast_reply_head_equals_the_general_one(serialize_type, body, remark):
    """The head and its body are one frame, which is read as the same command."""
    reply = PullReply(next_begin_offset=7, min_offset=1, max_offset=9, suggested_broker_id=1)
    head = pull_reply_head(
        serialize_type,
        77,
        ResponseCode.PULL_NOT_FOUND,
        reply,
        remark=remark,
        body_size=len(body),
    )
    reader = FrameReader(10_000)
    reader.feed(head + body)
    command = reader.next_command()
    general = RemotingCommand(
        code=19,
        opaque=77,
        flag=1,
        remark=remark,
        ext_fields=write_reply_fields(reply),
        body=body,
        serialize_type=serialize_type,
    )
    reader.feed(encode_command(general))
    assert command == reader.next_command()

"""What groups tell each other for routes: keys, values, and what is read of them."""

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.broker.group_directory import BrokerRoute, TopicQueues
from hastore.cluster.group_records import Keys
from hastore.cluster.key_value_store import KeyValue
from hastore.cluster.route_records import (
    GROUPS_MAX,
    TOPICS_SIZE_MAX,
    RouteKeys,
    RouteNode,
    RouteReader,
    decode_topics,
    encode_topics,
)
from hastore.errors import ProtocolError
from hastore.wire.config_tables import TopicConfig
from tests.support.documented_examples import examples_in_the_docs

KEYS = RouteKeys.of(Keys.of("/p/q", "c1", "g1").base)


def item(key, value, revision=1):
    """Return an item as the coordinator has it."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return key, KeyValue(key, data, 1, revision, None)


def node(group, node_id, client, epoch=None, revision=1):
    """Return the item of a node."""
    return item(KEYS.node(group, node_id), RouteNode(client, epoch).encode(), revision)


def topics(group, **rows):
    """Return the item of a group's topics."""
    return item(KEYS.topics(group), {"topics": rows})


def config(name, read=8, write=8, perm=6):
    """Return a topic."""
    return TopicConfig(topic=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def test_keys_are_beside_those_of_the_groups():
    """No group can have their name, so no two meanings meet."""
    assert KEYS.base == "/p/q/c1/@routes/"
    assert KEYS.cluster == "c1"
    assert KEYS.node("g1", 2) == "/p/q/c1/@routes/g1/nodes/2"
    assert KEYS.topics("g1") == "/p/q/c1/@routes/g1/topics"


def test_values_are_read_as_they_were_written():
    """Of nodes and topics."""
    for each in (RouteNode("n1:10911", 7), RouteNode("[::1]:1", None)):
        assert RouteNode.decode("k", each.encode()) == each
    value, left_out = encode_topics({"T": config("T", 8, 4, 6), "ü": config("ü", 1, 1, 4)})
    assert left_out == 0
    assert decode_topics("k", value) == {
        "T": TopicQueues(read=8, write=4, perm=6),
        "ü": TopicQueues(read=1, write=1, perm=4),
    }


def test_the_documented_examples_are_what_is_read_and_written():
    """Of both keys, byte for byte but for spaces."""
    examples = examples_in_the_docs("The cluster's routes")
    documented = {key: json.dumps(json.loads(examples[key])) for key in ("nodes/2", "topics")}
    assert examples.keys() == documented.keys()
    node = RouteNode("10.0.0.2:10911", 12)
    table = {name: config(name) for name in ("orders", "TBW102")}
    for key, value in (("nodes/2", node.encode()), ("topics", encode_topics(table)[0])):
        assert json.dumps(json.loads(value)) == documented[key]
    assert RouteNode.decode("k", documented["nodes/2"].encode()) == node


def test_topics_that_have_no_room_are_left_out_the_last_by_name():
    """So each master of a group publishes the same ones."""
    table = {name: config(name) for name in (f"{number:0120d}" for number in range(5_000))}
    value, left_out = encode_topics(dict(reversed(table.items())))
    read = decode_topics("k", value)
    assert TOPICS_SIZE_MAX - 200 < len(value) <= TOPICS_SIZE_MAX
    assert list(read) == sorted(table)[: len(table) - left_out]
    assert 0 < left_out < len(table)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["client", "epoch", "topics", "T"]), inner)
    ),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_value_or_a_named_error(data):
    """Never another error; what is damaged is named."""
    items = dict(
        [node("g2", 1, "b:1"), item(KEYS.node("g2", 2), data), item(KEYS.topics("g2"), data)]
    )
    reader = RouteReader(KEYS, "g1")
    (group,) = reader.read(items)
    assert group.addresses[1] == ("b", 1)
    assert all(key in reason for key, reason in reader.damaged.items())


@pytest.mark.parametrize(
    "value",
    [
        {"epoch": 1},
        {"client": "nowhere", "epoch": 1},
        {"client": "n:1", "epoch": 0},
        {"client": "n:1", "epoch": True},
    ],
)
def test_a_node_that_is_none(value):
    """Its address and its epoch are what they should be."""
    with pytest.raises(ProtocolError, match="the coordinator's key k"):
        RouteNode.decode("k", json.dumps(value).encode())


@pytest.mark.parametrize(
    "row", [None, [1, 2], [1, 2, "6"], [-1, 2, 6], [1, 70_000, 6], [1, True, 6]]
)
def test_topics_that_are_none(row):
    """Each has three numbers in their ranges."""
    with pytest.raises(ProtocolError, match="topic T is"):
        decode_topics("k", json.dumps({"topics": {"T": row}}).encode())


def test_the_other_groups_are_read():
    """By name, each with its master as 0; not the own one, nor what is no group of any node."""
    items = dict(
        [
            node("g1", 1, "a:1", epoch=5),
            node("g3", 1, "x:1"),
            node("g3", 2, "y:1", epoch=4),
            node("g3", 3, "z:1", epoch=3),  # it does not know its successor yet
            topics("g3", T=[8, 4, 6]),
            node("g2", 7, "b:1"),
            topics("g4", T=[8, 8, 6]),  # all of its nodes are down
            item(f"{KEYS.base}@x/nodes/1", {"client": "c:1"}),
            item(f"{KEYS.base}g2/nodes/x", {"client": "c:1"}),
            item(f"{KEYS.base}g2/others/1", {"client": "c:1"}),
        ]
    )
    assert RouteReader(KEYS, "g1").read(items) == (
        BrokerRoute(cluster="c1", broker_name="g2", addresses={7: ("b", 1)}, topics={}),
        BrokerRoute(
            cluster="c1",
            broker_name="g3",
            addresses={0: ("y", 1), 1: ("x", 1), 3: ("z", 1)},
            topics={"T": TopicQueues(read=8, write=4, perm=6)},
        ),
    )


def test_what_cannot_be_read_is_named_and_passed_over():
    """The rest counts; once it can be read, it does, too."""
    reader = RouteReader(KEYS, "g1")
    bad = item(KEYS.topics("g2"), b"{")
    (group,) = reader.read(dict([node("g2", 1, "b:1"), bad]))
    assert group.topics == {}
    assert list(reader.damaged) == [KEYS.topics("g2")]
    key, good = topics("g2", T=[1, 1, 6])
    (group,) = reader.read(dict([node("g2", 1, "b:1"), (key, attrs.evolve(good, mod_revision=2))]))
    assert list(group.topics) == ["T"]
    assert reader.damaged == {}


def test_a_value_is_read_once(monkeypatch):
    """All nodes read all changes: what has not changed costs nothing."""
    reader, items = RouteReader(KEYS, "g1"), dict([node("g2", 1, "b:1"), topics("g2", T=[1, 1, 6])])
    first = reader.read(items)
    monkeypatch.setattr("hastore.cluster.route_records.decode_topics", None)
    again = reader.read(items | dict([node("g2", 2, "c:1")]))
    assert again[0].topics == first[0].topics
    assert again[0].addresses == {1: ("b", 1), 2: ("c", 1)}


def test_so_many_groups_at_most_are_kept():
    """The first by name."""
    names = [f"h{number:03d}" for number in range(GROUPS_MAX + 5)]
    found = RouteReader(KEYS, "g1").read(dict(node(name, 1, "b:1") for name in names))
    assert [group.broker_name for group in found] == names[:GROUPS_MAX]

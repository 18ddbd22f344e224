"""What a group keeps in its coordinator is read as it was written, or refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.cluster.group_records import (
    EpochRecord,
    GroupConfig,
    GroupState,
    GroupView,
    Incarnation,
    Keys,
    Leader,
    Member,
    Registration,
    RoomRequests,
    Switchover,
    read_group,
)
from hastore.cluster.key_value_store import KeyValue, Snapshot
from hastore.config import NODE_ID_MAX
from hastore.epoch_history import EPOCH_MAX
from hastore.errors import ProtocolError
from hastore.store.node_identity import Unverified
from tests.support.documented_examples import examples_in_the_docs

KEYS = Keys.of("/hastore", "c1", "orders")
UUID_1 = "5f0c6d7e-3b1a-4c55-9d60-1f2e3d4c5b6a"
UUID_2 = "77ab0000-1111-4222-8333-444455556666"
ONE, TWO = Incarnation(1, UUID_1, 7), Incarnation(2, UUID_2, 3)

# The values of the examples in docs/formats.md, by the rest of the key.
TITLE = "The coordinator's keys"
EXAMPLES = {
    "leader": Leader(
        holder=ONE, epoch=12, ha_address="10.0.0.1:10912", client_address="10.0.0.1:10911"
    ),
    "state": GroupState(
        epoch=12,
        master=ONE,
        members=(ONE, TWO),
        acks="all",
        proposal=4,
        confirm_offset=5_242_880,
        registered=frozenset({1, 2, 3}),
    ),
    "ids/1": Registration(uuid=UUID_1, start=7, nonce="9b2e7d10-5a44-4c0f-8a55-1d0c7be3f6aa"),
    "members/2": Member(
        node=TWO,
        kept_since=2,
        role="slave",
        last_epoch=12,
        end=5_242_880,
        ha_address="10.0.0.2:10912",
        client_address="10.0.0.2:10911",
        priority=0,
        link="10.0.0.2:48112",
        election=None,
        version="0.9.0",
        at_ms=1_764_000_000_000,
        can_store=True,
        has_room=True,
        ttl_s=10,
    ),
    "history/12": EpochRecord(
        epoch=12,
        master_id=1,
        former_id=2,
        end=4_194_304,
        why="failover with loss",
        at_ms=1_764_000_000_000,
        lost={"orders": 20},
    ),
    "config": GroupConfig(
        is_paused=False,
        switchover=Switchover(from_epoch=12, to_id=2, ready_end=5_242_880, for_room=True),
        alarm=None,
        seen_epoch=12,
        room_requests=RoomRequests(
            epoch=12, at_ms=1_764_000_000_000, pause_s=60, tried=frozenset({1, 2})
        ),
    ),
}


def test_the_documented_examples_are_all_that_there_is():
    """One for each key of a group."""
    assert examples_in_the_docs(TITLE).keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_documented_example_is_what_is_read_and_written(name):
    """Field by field, without one more."""
    documented, value = examples_in_the_docs(TITLE)[name], EXAMPLES[name]
    assert type(value).decode(name, documented.encode()) == value
    assert json.loads(value.encode()) == json.loads(documented)


def test_a_group_is_read_from_the_documented_keys():
    """Each where it belongs, with its revision."""
    items = {
        KEYS.base + name: KeyValue(KEYS.base + name, value.encode(), 2, 10 + number, None)
        for number, (name, value) in enumerate(EXAMPLES.items())
    }
    leader = items[KEYS.leader]
    items[KEYS.leader] = KeyValue(leader.key, leader.value, 2, leader.mod_revision, 77)
    assert read_group(KEYS, Snapshot(5, 20, items)) == GroupView(
        cluster_id=5,
        revision=20,
        state=EXAMPLES["state"],
        state_revision=11,
        leader=EXAMPLES["leader"],
        leader_revision=10,
        leader_lease=77,
        config=EXAMPLES["config"],
        config_revision=15,
        members={2: EXAMPLES["members/2"]},
        registrations={1: EXAMPLES["ids/1"]},
        history=(EXAMPLES["history/12"],),
    )


def test_a_group_without_keys_is_empty():
    """Nothing is there, at no revision; nobody has paused it."""
    assert read_group(KEYS, Snapshot(5, 20, {})) == GroupView(cluster_id=5, revision=20)


def test_keys_stand_below_prefix_cluster_and_group():
    """One slash between each two."""
    assert Keys.of("/hastore/", "c1", "orders") == KEYS
    assert KEYS.base == "/hastore/c1/orders/"
    own = [KEYS.leader, KEYS.state, KEYS.config, KEYS.registration(1)]
    own += [KEYS.member(2), KEYS.history(12)]
    assert {key.removeprefix(KEYS.base) for key in own} == EXAMPLES.keys()


# -- round trips ----------------------------------------------------------------------------------

TEXTS = st.text(max_size=20)
ADDRESSES = st.builds(
    "{}:{}".format, st.sampled_from(["h1", "10.0.0.1", "[::1]"]), st.integers(1, 65_535)
)
NODE_IDS = st.integers(1, NODE_ID_MAX)
EPOCHS = st.integers(1, EPOCH_MAX)
NUMBERS = st.integers(0, 2**63 - 1)
UNVERIFIED = st.builds(
    Unverified, begin=st.integers(0, 9), end=st.integers(9, 2**63 - 1), why=TEXTS
)
INCARNATIONS = st.builds(Incarnation, NODE_IDS, TEXTS, st.integers(1, 2**63 - 1))
SETS = st.lists(INCARNATIONS, max_size=4, unique_by=lambda each: each.node_id).map(
    lambda members: tuple(sorted(members))
)
VALUES = st.one_of(
    st.builds(
        Leader,
        holder=INCARNATIONS,
        epoch=EPOCHS,
        ha_address=ADDRESSES,
        client_address=st.none() | ADDRESSES,
    ),
    st.builds(
        GroupState,
        epoch=EPOCHS,
        master=INCARNATIONS,
        members=SETS,
        acks=TEXTS,
        proposal=st.none() | NUMBERS,
        registered=st.frozensets(NODE_IDS, max_size=3),
    ),
    st.builds(GroupState, epoch=st.just(0), master=st.none(), members=SETS, acks=TEXTS),
    st.builds(Registration, uuid=TEXTS, start=st.integers(1, 2**63 - 1), nonce=TEXTS),
    st.builds(
        Member,
        node=INCARNATIONS,
        kept_since=st.integers(1, 2**63 - 1),
        role=TEXTS,
        last_epoch=st.integers(0, EPOCH_MAX),
        end=NUMBERS,
        ha_address=ADDRESSES,
        client_address=st.none() | ADDRESSES,
        priority=st.integers(0, 1_000),
        link=st.none() | TEXTS,
        election=st.none() | NUMBERS,
        version=TEXTS,
        unverified=st.none() | UNVERIFIED,
        disowned_in=st.none() | st.integers(1, 1 << 62),
        end_epoch=st.integers(0, EPOCH_MAX),
    ),
    st.builds(
        EpochRecord,
        epoch=EPOCHS,
        master_id=NODE_IDS,
        former_id=st.none() | NUMBERS,
        end=NUMBERS,
        why=TEXTS,
        at_ms=NUMBERS,
    ),
    st.builds(
        GroupConfig,
        is_paused=st.booleans(),
        switchover=st.none()
        | st.builds(Switchover, from_epoch=EPOCHS, to_id=NODE_IDS, ready_end=st.none() | NUMBERS),
        alarm=st.none() | TEXTS,
        seen_epoch=st.just(0) | EPOCHS,
    ),
)


@given(VALUES)
def test_what_is_written_is_read(value):
    """Whatever the fields are, within their limits."""
    assert type(value).decode("key", value.encode()) == value


def test_the_largest_values_are_read():
    """64 members, texts of 1,024 characters that JSON writes as twelve each."""
    members = tuple(Incarnation(node_id, "\U0001f409" * 1_024, 1) for node_id in range(1, 65))
    value = GroupState(epoch=EPOCH_MAX, master=members[-1], members=members)
    assert GroupState.decode("state", value.encode()) == value
    assert value.ids == set(range(1, 65))
    assert (value.member(64), value.member(65)) == (members[-1], None)


def test_the_state_of_an_older_version_registers_its_members():
    """It has no ids besides."""
    older = json.loads(EXAMPLES["state"].encode())
    del older["registered"]
    assert GroupState.decode("state", json.dumps(older).encode()).registered == {1, 2}


# -- what is refused ------------------------------------------------------------------------------

KINDS = [type(value) for value in EXAMPLES.values()]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@st.composite
def damaged_values(draw):
    """Return a kind and JSON of it in which some fields are missing or anything else."""
    name = draw(st.sampled_from(list(EXAMPLES)))
    value = json.loads(EXAMPLES[name].encode())
    for field in draw(st.lists(st.sampled_from(sorted(value)), min_size=1, unique=True)):
        inner = value[field]
        if isinstance(inner, dict) and draw(st.booleans()):
            inner[draw(st.sampled_from(sorted(inner)))] = draw(JSON)
        elif draw(st.booleans()):
            value[field] = draw(JSON)
        else:
            del value[field]
    return type(EXAMPLES[name]), json.dumps(value).encode()


@given(damaged_values())
def test_a_damaged_value_is_read_or_refused_by_its_key(damaged):
    """No other error, and what is read can be written."""
    kind, data = damaged
    try:
        value = kind.decode("/a/key", data)
    except ProtocolError as error:
        refusal = str(error)
    else:
        refusal = "/a/key" if kind.decode("/a/key", value.encode()) == value else "changed"
    assert "/a/key" in refusal


@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(kind, data):
    """Bytes that are not JSON, or not an object, most of all; `{}` is a config without wishes."""
    refusal = "/a/key"
    try:
        kind.decode("/a/key", data)
    except ProtocolError as error:
        refusal = str(error)
    assert "/a/key" in refusal


@pytest.mark.parametrize(
    ("name", "field", "value", "why"),
    [
        ("leader", "id", 0, "id is 0, not 1 to 9223372036854775807"),
        ("leader", "id", True, "id is True"),
        ("leader", "id", 1.0, "id is 1.0"),
        ("leader", "id", 2**63, "id is 9223372036854775808"),
        ("leader", "start", 0, "start is 0"),
        ("leader", "epoch", 0, "epoch is 0, not 1 to 2147483647"),
        ("leader", "epoch", 2**31, "epoch is 2147483648"),
        ("leader", "ha", None, "ha is None, not a short text"),
        ("leader", "uuid", "u" * 1_025, "uuid is 'u{99}, not a short text"),
        ("state", "master", None, "epoch 12 and its master do not fit"),
        ("state", "epoch", 0, "epoch 0 and its master do not fit"),
        ("state", "master", 1, "master is 1, not an object"),
        ("state", "members", {}, "members is not a list of 64 nodes at most"),
        ("state", "members", [ONE.as_json()] * 65, "members is not a list of 64 nodes at most"),
        ("state", "members", [ONE.as_json()] * 2, "members names a node twice"),
        ("state", "members", [1], "members has 1, not a node"),
        ("state", "members", [{}], "members: id is None"),
        ("state", "proposal", -1, "proposal is -1"),
        ("state", "registered", 3, "registered is 3, not ids of nodes"),
        ("state", "registered", [0], r"registered is \[0\], not ids of nodes"),
        ("members/2", "priority", 1_001, "priority is 1001, not 0 to 1000"),
        ("members/2", "kept_since", 0, "kept_since is 0"),
        ("members/2", "unverified", 3, "unverified is 3, not an object"),
        ("members/2", "unverified", {"begin": 2, "end": 1, "why": ""}, "unverified: end is 1"),
        ("config", "pause", "no", "pause is 'no', not true or false"),
        ("config", "switchover", [], r"switchover is \[\], not an object"),
        ("config", "switchover", {"to": 2}, "switchover: from_epoch is None"),
        ("history/12", "to", 0, "to is 0"),
        ("history/12", "lost", {"a": -1}, "lost is {'a': -1}, not numbers by name"),
        ("history/12", "lost", 3, "lost is 3, not numbers by name"),
        ("ids/1", "uuid", 5, "uuid is 5, not a short text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_wrong_is_named(name, field, value, why):
    """The key, the field, its value and what it may be."""
    changed = json.loads(EXAMPLES[name].encode()) | {field: value}
    with pytest.raises(ProtocolError, match=f"^the coordinator's key {name}: {why}"):
        type(EXAMPLES[name]).decode(name, json.dumps(changed).encode())


def test_an_error_does_not_repeat_a_large_value():
    """It ends up in a line of the log."""
    with pytest.raises(ProtocolError) as caught:
        Registration.decode("ids/1", json.dumps({"uuid": "u" * 1_000_000, "start": 1}).encode())
    assert len(str(caught.value)) < 300


def group_of(**values):
    """Return what is read from these values, by the rest of their keys."""
    items = {}
    for name, value in values.items():
        key = KEYS.base + name
        items[key] = KeyValue(key, value, 2, 3, None)
    return read_group(KEYS, Snapshot(5, 20, items))


@pytest.mark.parametrize("name", ["leader", "state", "config"])
def test_nothing_is_decided_without_what_all_decide_by(name):
    """A group whose leader, state or config cannot be read is not read at all."""
    with pytest.raises(ProtocolError, match=name):
        group_of(**{name: b"{"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("members/2", b"{"),
        ("members/1", EXAMPLES["members/2"].encode()),
        ("members/x", EXAMPLES["members/2"].encode()),
        ("members/02", EXAMPLES["members/2"].encode()),
        ("ids/1", b"[]"),
        ("ids/x", EXAMPLES["ids/1"].encode()),
        ("ids/01", EXAMPLES["ids/1"].encode()),
        ("ids/0", EXAMPLES["ids/1"].encode()),
        ("ids/" + "9" * 5_000, EXAMPLES["ids/1"].encode()),
        ("history/12", b"\xff"),
        ("history/11", EXAMPLES["history/12"].encode()),
        ("history/x", EXAMPLES["history/12"].encode()),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_other_keys_that_cannot_be_read_are_named_and_passed_over(name, value):
    """One that a person has mistyped must not stop the group."""
    read = group_of(**{name: value, "state": EXAMPLES["state"].encode()})
    assert read.damaged.keys() == {KEYS.base + name}
    assert (read.members, read.registrations, read.history) == ({}, {}, ())
    assert read.state == EXAMPLES["state"]


def test_keys_of_a_later_version_are_passed_over():
    """A newer node may write more below its group."""
    assert group_of(**{"promises/1": b"?", "leader2": b"?"}) == group_of()


@pytest.mark.parametrize("name", EXAMPLES)
def test_fields_of_a_later_version_are_passed_over(name):
    """A group is upgraded node by node."""
    value = json.loads(EXAMPLES[name].encode()) | {"more": [1]}
    assert type(EXAMPLES[name]).decode(name, json.dumps(value).encode()) == EXAMPLES[name]

"""The identity of a directory: one node's for good, whole after any crash, and never guessed."""

import json
import random
import threading
import zlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import NODE_ID_MAX
from hastore.env.real import RealDisk
from hastore.epoch_history import EPOCH_MAX
from hastore.errors import ConfigError, DiskError, IdentityFileError, WrongNodeError
from hastore.store.epoch_file import EPOCH_FILE
from hastore.store.log.store_directory import check_is_store
from hastore.store.node_identity import (
    IDENTITY_FILE,
    SCHEMA,
    ConfirmMark,
    CoordinatorMark,
    Identity,
    NodeIdentity,
    Opening,
    Unverified,
    Vote,
    decode_identity,
    encode_identity,
    read_identity,
)
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import disk_full, read_failed

PATH = f"/d/{IDENTITY_FILE}"
UUID = "0b5c6d7e-0000-4000-8000-000000000001"
MASTER = "77ab0000-1111-4222-8333-444455556666"
FULL = Identity(
    node_id=2,
    group="g1",
    uuid=UUID,
    starts=7,
    kept_since=5,
    boot_id="boot-1",
    last_exit_ok=False,
    seen_epoch=12,
    vote=Vote(epoch=12, node_id=1),
    confirm_mark=ConfirmMark(epoch=11, offset=5_242_880, master_uuid=MASTER),
)
BARE = attrs.evolve(FULL, boot_id=None, vote=None, confirm_mark=None, seen_epoch=0)

uuids = st.uuids(version=4).map(str)
epochs = st.integers(1, EPOCH_MAX)
votes = st.builds(Vote, epoch=epochs, node_id=st.integers(1, NODE_ID_MAX))
marks = st.builds(
    ConfirmMark,
    epoch=st.integers(0, EPOCH_MAX),
    offset=st.integers(0, (1 << 63) - 1),
    master_uuid=uuids,
)
numbers = st.integers(0, (1 << 63) - 1)
seen_coordinators = st.builds(
    CoordinatorMark,
    cluster_id=st.integers(0, (1 << 64) - 1),
    revision=numbers,
    state_revision=numbers,
)
unverified_parts = st.builds(
    Unverified,
    begin=st.integers(0, 1 << 40),
    end=st.integers(1 << 40, (1 << 63) - 1),
    why=st.text(max_size=200),
)
identities = st.builds(
    Identity,
    node_id=st.integers(1, NODE_ID_MAX),
    group=st.from_regex(r"[a-zA-Z0-9._-]{1,127}", fullmatch=True),
    uuid=uuids,
    starts=st.integers(10, 1 << 40),
    kept_since=st.integers(1, 10),
    doubt=st.none() | st.text(max_size=100),
    token=st.none() | uuids,
    former_token=st.none() | uuids,
    promise_ttl_s=st.integers(0, 3_600),
    boot_id=st.none() | uuids,
    last_exit_ok=st.booleans(),
    acks_flushed=st.booleans(),
    seen_epoch=st.integers(0, EPOCH_MAX),
    vote=st.none() | votes,
    confirm_mark=st.none() | marks,
    coordinator=st.none() | seen_coordinators,
    unverified=st.none() | unverified_parts,
    disowned_in=st.none() | st.integers(1, 1 << 62),
)


def start(disk, data_dir="/d", node_id=2, group="g1", last_exit_ok=True, **options):
    """Open a directory as its node does at each start, before it has looked at the log."""
    options = {"boot_id": "boot-1", "randomness": random.Random(1), **options}
    return NodeIdentity.open(
        disk, data_dir, node_id=node_id, group=group, last_exit_ok=last_exit_ok, **options
    )


def open_log(disk, *, last_exit_ok=True, boot_id="boot-1", **found):
    """Open a directory as ``start`` does, after a clean stop by default, and find the log's end."""
    before = read_identity(disk, "/d")
    if before is not None and last_exit_ok:
        NodeIdentity(disk, f"/d/{IDENTITY_FILE}", before).stopped(found.get("end_offset", 0))
    identity = start(disk, last_exit_ok=last_exit_ok, boot_id=boot_id)
    identity.opened(opening(last_exit_ok=last_exit_ok, boot_id=boot_id, **found))
    return identity


def opening(*, end_offset=0, **found):
    """Return what a start has found; without more, nothing."""
    values = {
        "end_offset": end_offset,
        "kept_offset": end_offset,
        "lacks": lambda offset: offset > end_offset,
        "has_intact_rest": False,
        "last_exit_ok": True,
        "boot_id": "boot-1",
        "acked_offset": None,
        "acks_flushed": False,
    }
    return Opening(**values | found)


def with_checksum(content):
    """Return a file with this content and a right checksum."""
    covered = json.dumps(content, indent=1).removesuffix("\n}").encode() + b",\n"
    return covered + b' "crc32": %d\n}\n' % zlib.crc32(covered)


# -- the bytes -----------------------------------------------------------------------------------


def test_the_file_has_these_bytes():
    """docs/formats.md shows them; a change needs another schema."""
    covered = b"""{
 "schema": "hastore.identity/1",
 "node_id": 2,
 "group": "g1",
 "uuid": "0b5c6d7e-0000-4000-8000-000000000001",
 "starts": 7,
 "kept_since": 5,
 "doubt": null,
 "token": null,
 "former_token": null,
 "boot_id": "boot-1",
 "last_exit_ok": false,
 "clean_end": null,
 "acks_flushed": false,
 "promise_ttl_s": 0,
 "seen_epoch": 12,
 "vote": {
  "epoch": 12,
  "node_id": 1
 },
 "confirm_mark": {
  "epoch": 11,
  "offset": 5242880,
  "master_uuid": "77ab0000-1111-4222-8333-444455556666"
 },
"""
    assert encode_identity(FULL) == covered + b' "crc32": %d\n}\n' % zlib.crc32(covered)
    content = json.loads(encode_identity(BARE))
    assert content["vote"] is content["confirm_mark"] is content["boot_id"] is None


@given(identities)
def test_what_is_written_is_read(identity):
    """Every value comes back."""
    assert decode_identity(encode_identity(identity)) == identity


def test_the_largest_identity_is_read():
    """The limit of the file's size is above it."""
    number = (1 << 63) - 1
    largest = Identity(
        node_id=number,
        group="g" * 127,
        uuid=UUID,
        starts=number,
        kept_since=number,
        doubt='"' * 200,
        token=UUID,
        former_token='"' * 256,
        promise_ttl_s=1 << 31,
        boot_id='"' * 64,  # written as two characters each
        last_exit_ok=False,
        seen_epoch=EPOCH_MAX,
        vote=Vote(epoch=EPOCH_MAX, node_id=number),
        confirm_mark=ConfirmMark(epoch=EPOCH_MAX, offset=number, master_uuid=MASTER),
        coordinator=CoordinatorMark(
            cluster_id=(1 << 64) - 1, revision=number, state_revision=number
        ),
        unverified=Unverified(begin=number, end=number, why="\U0001f600" * 200),
        disowned_in=number,
    )
    assert decode_identity(encode_identity(largest)) == largest


@given(identities, st.data())
def test_a_torn_or_changed_file_is_not_read(identity, data):
    """Cut anywhere, with the rest zeroed, or with one byte changed, anywhere."""
    whole = encode_identity(identity)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(decode_identity(whole[:cut]), str)
    assert isinstance(decode_identity(whole[:cut] + bytes(len(whole) - cut)), str)
    flip = data.draw(st.integers(1, 255))
    changed = whole[:cut] + bytes([whole[cut] ^ flip]) + whole[cut + 1 :]
    assert isinstance(decode_identity(changed), str)


@pytest.mark.parametrize("identity", [FULL, BARE])
def test_a_file_torn_at_any_byte_is_refused_by_name(identity):
    """Also if it is followed by zeros, or by the end of a longer file that it has replaced."""
    whole = encode_identity(identity)
    former = encode_identity(attrs.evolve(identity, group="g1-and-more", starts=1000))
    for size in range(len(whole)):
        for torn in (whole[:size], whole[:size] + bytes(9), whole[:size] + former[size:]):
            disk = FakeDisk()
            disk.put(PATH, torn)
            if torn == former:
                continue
            with pytest.raises(IdentityFileError, match=f"^{PATH}: it"):
                read_identity(disk, "/d")


CONTENT = {
    "schema": SCHEMA,
    "node_id": 2,
    "group": "g1",
    "uuid": UUID,
    "starts": 7,
    "kept_since": 5,
    "boot_id": None,
    "last_exit_ok": True,
    "seen_epoch": 12,
    "vote": {"epoch": 12, "node_id": 1},
    "confirm_mark": {"epoch": 11, "offset": 5_242_880, "master_uuid": MASTER},
}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"schema": "hastore.identity/2"}, "its schema is 'hastore.identity/2', and this version"),
        ({"schema": None}, "its schema is None"),
        ({"node_id": 0}, "node_id is 0, not a number from 1 to 9223372036854775807"),
        ({"node_id": 1 << 63}, "node_id is 9223372036854775808"),
        ({"node_id": True}, "node_id is True"),
        ({"node_id": 2.0}, "node_id is 2.0"),
        ({"node_id": "2"}, "node_id is '2'"),
        ({"group": ""}, "group is ''"),
        ({"group": "a/b"}, "group is 'a/b'"),
        ({"group": "g" * 128}, "group is 'ggg"),
        ({"group": "g1\n"}, r"group is 'g1\n'"),
        ({"uuid": UUID.upper()}, "uuid is '0B5C"),
        ({"uuid": None}, "uuid is None"),
        ({"starts": 0}, "starts is 0"),
        ({"starts": 4}, "kept_since is 5, after start 4"),
        ({"kept_since": 0}, "kept_since is 0"),
        ({"boot_id": ""}, "boot_id is ''"),
        ({"last_exit_ok": 1}, "'last_exit_ok' must be <class 'bool'>"),
        ({"seen_epoch": -1}, "seen_epoch is -1"),
        ({"seen_epoch": 1 << 31}, "seen_epoch is 2147483648"),
        ({"vote": {"epoch": 0, "node_id": 1}}, "epoch is 0"),
        ({"vote": {"epoch": 1, "node_id": 0}}, "node_id is 0"),
        ({"vote": {"epoch": 1}}, "missing 1 required keyword-only argument: 'node_id'"),
        ({"vote": [12, 1]}, "must be a mapping"),
        ({"confirm_mark": {"epoch": 1, "offset": -1, "master_uuid": MASTER}}, "offset is -1"),
        ({"confirm_mark": {"epoch": -1, "offset": 1, "master_uuid": MASTER}}, "epoch is -1"),
        ({"confirm_mark": {"epoch": 1, "offset": 1, "master_uuid": "m"}}, "master_uuid is 'm'"),
        ({"unverified": {"begin": 2, "end": 1, "why": ""}}, "end is 1, before begin 2"),
        ({"unverified": {"begin": 1, "end": 2, "why": "x" * 201}}, "not a text of 200"),
        ({"unverified": {"begin": 1, "end": 2, "why": None}}, "why is None"),
        ({"learner": True}, "unexpected keyword argument 'learner'"),
    ],
)
def test_a_file_with_other_content_is_named(changes, fault):
    """Its checksum is right, so another version or a person has written it."""
    found = decode_identity(with_checksum(CONTENT | changes))
    assert isinstance(found, str)
    assert fault in found


@pytest.mark.parametrize("name", sorted(CONTENT))
def test_a_file_without_one_of_its_fields_is_named(name):
    """A missing epoch must not be read as none."""
    content = {key: value for key, value in CONTENT.items() if key != name}
    assert isinstance(decode_identity(with_checksum(CONTENT)), Identity)
    found = decode_identity(with_checksum(content))
    assert isinstance(found, str)
    assert name in found


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_any_content_with_a_right_checksum_is_read_or_named(value):
    """In the place of the whole, and in that of each field."""
    for name in CONTENT:
        assert isinstance(decode_identity(with_checksum({**CONTENT, name: value})), Identity | str)
    assert isinstance(decode_identity(with_checksum({"x": value})), str)
    covered = json.dumps(value).encode() + b"\n"
    data = covered + b' "crc32": %d\n}\n' % zlib.crc32(covered)
    assert isinstance(decode_identity(data), str)


def test_a_large_file_is_not_parsed():
    """Even if it would be right."""
    found = decode_identity(b" " * 8192 + encode_identity(FULL))
    assert found == f"it has {8192 + len(encode_identity(FULL))} bytes, more than an identity takes"


# -- opening -------------------------------------------------------------------------------------


def test_an_empty_directory_gets_an_identity():
    """It is the first start; nothing was voted, seen or confirmed."""
    disk = FakeDisk()
    identity = start(disk, randomness=random.Random(1)).current
    assert identity == attrs.evolve(
        BARE, uuid=identity.uuid, starts=1, kept_since=1, boot_id="boot-1", last_exit_ok=True
    )
    assert disk.files("/d/") == {IDENTITY_FILE: encode_identity(identity)}
    assert read_identity(disk, "/d") == identity
    assert str(identity) == "node 2 of replica group g1"


def test_each_directory_has_a_uuid_of_its_own():
    """Drawn from the environment, so that a simulation repeats it."""
    draws = random.Random(7)
    uuids = [start(FakeDisk(), randomness=draws).current.uuid for _ in range(20)]
    assert len(set(uuids)) == 20
    again = random.Random(7)
    assert [start(FakeDisk(), randomness=again).current.uuid for _ in range(20)] == uuids
    # Version 4 has 122 random bits: each has both values in these.
    drawn = [int(text.replace("-", ""), 16) for text in uuids]
    ones, zeros = 0, 0
    for number in drawn:
        ones, zeros = ones | number, zeros | ~number
    assert (ones & zeros & ((1 << 128) - 1)).bit_count() == 122


def test_each_start_is_counted_and_the_rest_stays():
    """Also in a directory that is named with a slash."""
    disk = FakeDisk()
    first = start(disk)
    first.see(3)
    for starts in (2, 3, 4):
        identity = start(disk, "/d/" if starts == 3 else "/d", randomness=random.Random(99))
        assert identity.current == attrs.evolve(first.current, starts=starts)
    assert sorted(disk.files("/d/")) == [IDENTITY_FILE]


@pytest.mark.parametrize(
    ("starts", "kept_since"),
    [
        ([], 1),
        ([{}, {"boot_id": "b"}, {"boot_id": None}], 1),  # clean stops
        ([{"last_exit_ok": False, "acked_offset": 70}] * 2, 1),  # killed, and all is there
        ([{"last_exit_ok": False, "acked_offset": 71}], 2),  # killed, and a byte is missing
        ([{"acked_offset": 71}], 2),  # so after a clean stop, too
        ([{"last_exit_ok": False}], 2),  # killed, and nothing says what was acknowledged
        ([{"last_exit_ok": False, "boot_id": "b"}], 2),  # a power cut
        ([{"last_exit_ok": False, "boot_id": "b"}] * 2 + [{}], 3),  # two
        ([{"last_exit_ok": False, "boot_id": None}], 2),
    ],
)
def test_an_identity_knows_since_when_nothing_was_lost(starts, kept_since):
    """A start has to prove it; that the boot is the same proves nothing."""
    disk = FakeDisk()
    identity = open_log(disk, boot_id="a")
    for changes in starts:
        found = {"boot_id": "a", "end_offset": 70, **changes}
        identity = open_log(disk, **found)
        assert identity.current.boot_id == found["boot_id"]
        assert identity.current.last_exit_ok == found.get("last_exit_ok", True)
    assert identity.current.kept_since == kept_since
    assert identity.current.starts == len(starts) + 1
    assert (identity.current.doubt is None) is (kept_since == 1)


def test_a_start_that_was_killed_before_it_found_the_end_leaves_the_evidence():
    """The next one comes to the same result."""
    disk = FakeDisk()
    open_log(disk, boot_id="a", acks_flushed=True)
    for _ in range(3):
        start(disk, last_exit_ok=False, boot_id="b")
    identity = open_log(disk, last_exit_ok=False, boot_id="b", acks_flushed=False)
    assert (identity.current.starts, identity.current.kept_since) == (5, 1)
    identity = open_log(disk, last_exit_ok=False, boot_id="b")
    assert (identity.current.starts, identity.current.kept_since) == (6, 6)


@pytest.mark.parametrize(("flushed", "kept_since"), [(True, 1), (False, 2)])
def test_a_power_cut_takes_nothing_from_a_start_that_acknowledged_what_was_flushed(
    flushed, kept_since
):
    """The start that was cut off counts, not the one that comes after it."""
    disk = FakeDisk()
    open_log(disk, boot_id="a", acks_flushed=flushed)
    identity = open_log(disk, last_exit_ok=False, boot_id="b", acks_flushed=not flushed)
    assert identity.current.kept_since == kept_since
    assert identity.current.acks_flushed is False


def test_a_start_that_syncs_vouches_for_earlier_ones_only_after_a_clean_stop():
    """What an earlier start has acknowledged from its page cache may not be on the disk yet."""
    disk = FakeDisk()
    open_log(disk)
    killed = open_log(disk, last_exit_ok=False, acks_flushed=True)
    assert not killed.current.acks_flushed
    assert open_log(disk, acks_flushed=True).current.acks_flushed
    killed = open_log(disk, last_exit_ok=False, acks_flushed=True)
    assert killed.current.acks_flushed


@pytest.mark.parametrize(
    ("boot_id", "acked_offset", "kept_since"),
    [("boot-1", None, 2), ("boot-1", 70, 1), ("boot-2", None, 1)],
)
def test_records_behind_a_damaged_one_count_in_the_same_boot(boot_id, acked_offset, kept_since):
    """A power cut leaves such records, too, unacknowledged; so does a number that is below them."""
    disk = FakeDisk()
    open_log(disk, acks_flushed=True)
    identity = open_log(
        disk,
        last_exit_ok=False,
        boot_id=boot_id,
        acked_offset=acked_offset,
        end_offset=70,
        has_intact_rest=True,
    )
    assert identity.current.kept_since == kept_since


def test_a_log_that_ends_below_its_confirm_mark_is_in_doubt_before_the_mark_is_lowered():
    """The mark is evidence; it is lowered in the same write that records the doubt."""
    disk = FakeDisk()
    open_log(disk, acks_flushed=True).raise_confirm_mark(ConfirmMark(epoch=1, offset=80))
    identity = open_log(disk, last_exit_ok=False, boot_id="boot-2", end_offset=70)
    assert identity.current.kept_since == 2
    assert identity.current.doubt == "its log ends at 70, and the group had confirmed up to 80"
    assert identity.current.confirm_mark.offset == 70


def test_a_slave_whose_log_ends_before_a_blank_has_lost_nothing():
    """The filler is acknowledged, and not kept: the mark must not be above the log that is."""
    disk = FakeDisk()
    open_log(disk, acks_flushed=True).raise_confirm_mark(ConfirmMark(epoch=1, offset=80))
    identity = open_log(disk, last_exit_ok=False, acked_offset=80, end_offset=80, kept_offset=70)
    assert identity.current.kept_since == 1
    assert identity.current.confirm_mark.offset == 70


def test_an_unfinished_record_is_not_missed():
    """Acknowledged bytes may end inside a record, whose rest never arrived."""
    disk = FakeDisk()
    open_log(disk)
    identity = open_log(
        disk, last_exit_ok=False, acked_offset=75, end_offset=70, lacks=lambda _offset: False
    )
    assert identity.current.kept_since == 1


@pytest.mark.parametrize(
    ("clean_end", "end_offset", "kept_since"),
    [(70, 70, 1), (None, 70, 1), (70, 60, 2), (60, 70, 2), (-1, 70, 2), (-1, 0, 2)],
)
def test_a_clean_stop_is_one_that_left_this_very_log(clean_end, end_offset, kept_since):
    """``abort`` may be missing after a kill, too: somebody removed it, or copied all but it."""
    disk = FakeDisk()
    identity = open_log(disk)
    file = attrs.evolve(identity.current, clean_end=clean_end)
    disk.write_file(f"/d/{IDENTITY_FILE}", encode_identity(file))
    identity = start(disk)
    identity.opened(opening(end_offset=end_offset))
    assert identity.current.kept_since == kept_since
    assert identity.current.clean_end == -1


def test_a_clean_stop_counts_until_a_start_claims_its_id():
    """A start that ended while it waited for etcd has acknowledged nothing."""
    disk = FakeDisk()
    identity = start(disk)
    identity.claim(None, UUID)
    identity.claimed()
    identity.stopped(70)
    for _ in range(2):
        identity = start(disk)
        identity.opened(opening(end_offset=70, last_exit_ok=False, keeps_acked=True))
        assert (identity.current.kept_since, identity.current.clean_end) == (1, 70)
    identity.claim(UUID, MASTER)
    identity.claimed()
    assert identity.current.clean_end == -1
    identity = start(disk)
    identity.opened(opening(end_offset=70, last_exit_ok=False, keeps_acked=True))
    assert identity.current.kept_since == 4


# -- claims --------------------------------------------------------------------------------------


def test_two_tokens_are_known_until_the_coordinator_has_the_new_one():
    """A crash in between leaves both."""
    disk = FakeDisk()
    identity = start(disk)
    identity.claim(None, UUID)
    assert (read_identity(disk, "/d").token, read_identity(disk, "/d").former_token) == (UUID, None)
    identity.claim(UUID, MASTER)
    found = read_identity(disk, "/d")
    assert (found.token, found.former_token) == (MASTER, UUID)
    identity.claimed()
    found = read_identity(disk, "/d")
    assert (found.token, found.former_token) == (MASTER, None)


def test_a_disowned_start_has_a_number_that_no_other_history_has_counted():
    """Its number, and not the one of the other history, is the one from which on it has all."""
    disk = FakeDisk()
    identity = start(disk)
    identity.disown(9, "it is an older copy")
    current = read_identity(disk, "/d")
    assert (current.starts, current.kept_since, current.doubt) == (9, 9, "it is an older copy")
    assert current.disowned_in == 9
    identity.disown(3, "again")
    assert (identity.current.starts, identity.current.kept_since) == (10, 10)
    assert start(disk).current.disowned_in == 10  # the next start has the same history


def test_a_file_of_an_earlier_version_acknowledged_anything():
    """It has no ``acks_flushed``: the next start after a power cut does not trust it."""
    content = attrs.asdict(BARE)
    del content["acks_flushed"]
    found = decode_identity(with_checksum({"schema": SCHEMA, **content}))
    assert isinstance(found, Identity)
    assert found.acks_flushed is False


@pytest.mark.parametrize(
    ("node_id", "group", "message", "hint"),
    [
        (3, "g1", "not to node 3 of g1", "start it with --node-id 2, or give node 3 of g1"),
        (2, "g9", "not to node 2 of g9", "start it with --node-group g1, or give node 2 of g9"),
        (3, "g9", "not to node 3 of g9", "start it with --node-id 2 --node-group g1, or give"),
    ],
)
def test_a_directory_of_another_node_is_refused(node_id, group, message, hint):
    """It stays as it is, even where a log may be adopted."""
    disk = FakeDisk()
    start(disk)
    before = disk.files("/d/")
    for adopt in (False, True):
        with pytest.raises(WrongNodeError) as caught:
            start(disk, node_id=node_id, group=group, adopt=adopt)
        assert str(caught.value) == f"/d belongs to node 2 of replica group g1, {message}"
        assert hint in caught.value.hint
        assert caught.value.path == "/d"
        assert caught.value.exit_code == 6
    assert disk.files("/d/") == before


@pytest.mark.parametrize(
    "path", [f"/d/commitlog/{0:020}", f"/d/{EPOCH_FILE}", f"/d/{EPOCH_FILE}.bak"]
)
def test_a_log_without_an_identity_is_refused_until_it_is_adopted(path):
    """It may be a classic log, or one whose identity, with its vote, was removed."""
    disk = FakeDisk()
    disk.put(path, b"1\n0\n4-0\n")
    before = disk.files("/d/")
    with pytest.raises(WrongNodeError, match=f"^/d holds a log but no {IDENTITY_FILE}") as caught:
        start(disk)
    assert caught.value.hint.startswith("give node 2 of g1 an empty directory")
    assert disk.files("/d/") == before
    adopted = start(disk, adopt=True, last_exit_ok=False)
    assert (adopted.current.starts, adopted.current.kept_since) == (1, 1)
    assert adopted.current.seen_epoch == (4 if EPOCH_FILE in path else 0)
    assert start(disk).current == attrs.evolve(adopted.current, starts=2)


def test_the_other_files_of_a_store_are_no_log():
    """A new store may have its directories before its identity, and a lock."""
    disk = FakeDisk()
    disk.make_dirs("/d/commitlog")
    for name in ("lock", "abort", "checkpoint", "config/topics.json", "commitlog/lost+found"):
        disk.put(f"/d/{name}", b"x")
    assert start(disk).current.starts == 1


@pytest.mark.parametrize(("node_id", "group"), [(0, "g1"), (1 << 63, "g1"), (1, ""), (1, "a b")])
def test_no_node_has_an_illegal_id_or_group(node_id, group):
    """Nothing is written."""
    disk = FakeDisk()
    with pytest.raises(ConfigError, match=r"^(node_id|group) is "):
        start(disk, node_id=node_id, group=group)
    assert disk.files("/d/") == {}


@pytest.mark.parametrize("backup", [None, encode_identity(FULL)])
@pytest.mark.parametrize("data", [b"", bytes(400), encode_identity(FULL)[:-1]])
def test_a_damaged_file_is_an_error_with_a_next_step(data, backup):
    """It stays as it is, and no older copy stands in for it, not even where logs are adopted."""
    disk = FakeDisk()
    disk.put(PATH, data)
    for suffix in (".bak", ".tmp") if backup is not None else ():
        disk.put(PATH + suffix, backup)
    before = disk.files("/d/")
    for act in (
        start,
        lambda disk: start(disk, adopt=True),
        lambda disk: read_identity(disk, "/d"),
    ):
        with pytest.raises(IdentityFileError) as caught:
            act(disk)
        assert str(caught.value).startswith(f"{PATH}: it does not end with its checksum")
        assert caught.value.hint.startswith("start the node on an empty directory")
        assert caught.value.path == PATH
        assert caught.value.exit_code == 4
    assert disk.files("/d/") == before


def test_a_file_that_the_disk_does_not_return_is_an_error():
    """It is not a missing one."""
    disk = FakeDisk()
    start(disk)
    before = disk.files("/d/")
    for call in ("read_file", "list_dir"):
        disk.fail(call, read_failed)
        for act in (start, lambda disk: read_identity(disk, "/d")):
            with pytest.raises(DiskError, match="Input/output error"):
                act(disk)
        disk.heal()
    assert disk.files("/d/") == before


def test_reading_changes_nothing():
    """For commands that show a directory; None is one without an identity."""
    disk = FakeDisk()
    assert read_identity(disk, "/d") is None
    disk.put(PATH, encode_identity(FULL))
    changes = list(disk.changes)
    assert read_identity(disk, "/d") == read_identity(disk, "/d/") == FULL
    assert disk.changes == changes


def test_a_directory_with_an_identity_alone_is_a_store():
    """A node killed before its log's first file starts again; the identity's own copy, too."""
    disk = FakeDisk()
    start(disk)
    disk.put(f"{PATH}.tmp", b"")
    check_is_store(disk, "/d")


def test_a_real_directory_keeps_its_identity(tmp_path):
    """Through the real file system."""
    disk = RealDisk()
    first = start(disk, str(tmp_path))
    first.see(4)
    assert first.cast(Vote(epoch=5, node_id=1))
    assert start(disk, f"{tmp_path}/").current == attrs.evolve(first.current, starts=2)
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY_FILE]


# -- changes -------------------------------------------------------------------------------------


def stored(disk):
    """Return what a kill and a power cut leave."""
    killed, cut = disk.kill(), disk.cut_power()
    assert read_identity(killed, "/d") == read_identity(cut, "/d")
    return read_identity(cut, "/d")


def test_the_seen_epoch_only_rises_and_is_durable():
    """An epoch that is not higher costs no write."""
    disk = FakeDisk()
    identity = start(disk)
    for epoch, highest, writes in ((0, 0, 0), (5, 5, 1), (5, 5, 0), (4, 5, 0), (7, 7, 1)):
        before = disk.counts["write_file"]
        identity.see(epoch)
        assert identity.current.seen_epoch == stored(disk).seen_epoch == highest
        assert disk.counts["write_file"] - before == writes
    assert stored(disk) == identity.current


def test_a_node_votes_once_an_epoch():
    """And never in an earlier one; the same vote again is granted, without a write."""
    disk = FakeDisk()
    identity = start(disk)
    for epoch, node_id, granted, writes in (
        (3, 1, True, 1),
        (3, 1, True, 0),
        (3, 2, False, 0),
        (2, 1, False, 0),
        (4, 2, True, 1),
        (3, 1, False, 0),
    ):
        before = disk.counts["write_file"]
        assert identity.cast(Vote(epoch=epoch, node_id=node_id)) is granted
        assert disk.counts["write_file"] - before == writes
        assert stored(disk) == identity.current
        if granted:
            assert identity.current.vote == Vote(epoch=epoch, node_id=node_id)
    assert start(disk).cast(Vote(epoch=4, node_id=1)) is False


def test_a_node_does_not_vote_below_the_seen_epoch():
    """Not even again: who asks is deposed already.  In the seen epoch itself it may."""
    identity = start(FakeDisk())
    assert identity.cast(Vote(epoch=3, node_id=1))
    identity.see(4)
    assert not identity.cast(Vote(epoch=3, node_id=1))
    assert identity.cast(Vote(epoch=4, node_id=2))
    assert identity.current.seen_epoch == 4


def test_a_vote_is_not_an_epoch_that_was_seen():
    """Else a node that has voted for itself could not become that epoch's master."""
    identity = start(FakeDisk())
    assert identity.cast(Vote(epoch=3, node_id=2))
    assert identity.current.seen_epoch == 0


def test_the_confirm_mark_rises_and_is_lowered_and_cleared_by_name_only():
    """Each change is durable, and a change to what is there costs no write."""
    disk = FakeDisk()
    identity = start(disk)
    low, high, other = (
        ConfirmMark(epoch=1, offset=10, master_uuid=MASTER),
        ConfirmMark(epoch=2, offset=20, master_uuid=MASTER),
        ConfirmMark(epoch=3, offset=20, master_uuid=UUID),
    )
    for change, mark, wanted, writes in (
        (NodeIdentity.lower_confirm_mark, low, None, 0),
        (NodeIdentity.raise_confirm_mark, low, low, 1),
        (NodeIdentity.raise_confirm_mark, high, high, 1),
        (NodeIdentity.raise_confirm_mark, low, high, 0),
        (NodeIdentity.raise_confirm_mark, other, high, 0),
        (NodeIdentity.lower_confirm_mark, other, high, 0),
        (NodeIdentity.lower_confirm_mark, low, low, 1),
        (NodeIdentity.lower_confirm_mark, high, low, 0),
    ):
        before = disk.counts["write_file"]
        change(identity, mark)
        assert identity.current.confirm_mark == wanted
        assert disk.counts["write_file"] - before == writes
        assert stored(disk) == identity.current
    identity.clear_confirm_mark()
    assert stored(disk) == identity.current
    assert identity.current.confirm_mark is None
    before = disk.counts["write_file"]
    identity.clear_confirm_mark()
    assert disk.counts["write_file"] == before


def test_a_failed_write_changes_nothing():
    """Neither the value nor the file; the next one works once the disk has room."""
    disk = FakeDisk()
    identity = start(disk)
    before = identity.current
    mark = ConfirmMark(epoch=1, offset=10, master_uuid=MASTER)
    disk.fail("write_file", disk_full())
    for change in (
        lambda: identity.see(2),
        lambda: identity.cast(Vote(epoch=2, node_id=1)),
        lambda: identity.raise_confirm_mark(mark),
        lambda: start(disk),
    ):
        with pytest.raises(DiskError):
            change()
        assert identity.current == stored(disk) == before
    disk.heal()
    identity.see(2)
    assert stored(disk).seen_epoch == 2


def test_changes_in_two_threads_do_not_undo_each_other():
    """Each is a whole file: the second must contain what the first has changed."""
    disk = FakeDisk()
    identity = start(disk)
    mark = ConfirmMark(epoch=1, offset=10, master_uuid=MASTER)
    other = threading.Thread(target=identity.raise_confirm_mark, args=(mark,))
    is_first = True

    def meanwhile(_operation):
        nonlocal is_first
        if is_first:
            is_first = False
            other.start()
            other.join(0.1)  # waits for the first change; without a lock it ends at once

    disk.before("write_file", meanwhile)
    identity.see(2)
    other.join()
    assert (identity.current.seen_epoch, identity.current.confirm_mark) == (2, mark)
    assert stored(disk) == identity.current


def test_a_part_that_is_not_verified_is_kept_until_the_whole_log_was_compared():
    """Two parts become the range that covers both; what was found meanwhile is not cleared."""
    disk = FakeDisk()
    identity = start(disk)
    first = Unverified(begin=100, end=200, why="log repair filled it")
    identity.mark_unverified(first)
    assert stored(disk).unverified == first
    identity.mark_unverified(Unverified(begin=150, end=160, why="log repair filled it"))
    assert identity.current.unverified == first
    identity = start(disk)
    assert identity.current.unverified == first
    identity.mark_unverified(Unverified(begin=400, end=500, why="a start found a filler"))
    both = Unverified(begin=100, end=500, why="a start found a filler")
    assert identity.current.unverified == both
    assert not identity.clear_unverified(first)
    assert stored(disk).unverified == both
    assert identity.clear_unverified(both)
    assert stored(disk).unverified is None


def test_what_is_unverified_after_a_comparison_is_compared_again():
    """The mark that was compared is another one then, and does not go."""
    identity = start(FakeDisk())
    first = Unverified(begin=4, end=8, why="a test says so")
    identity.mark_unverified(first)
    identity.compared_to = 100
    identity.mark_unverified(first)
    assert identity.compared_to == 100
    identity.mark_unverified(attrs.evolve(first, begin=40, end=50))
    assert not identity.clear_unverified(first)
    assert (identity.current.unverified.end, identity.compared_to) == (50, 0)


# -- crashes -------------------------------------------------------------------------------------

small_votes = st.builds(Vote, epoch=st.integers(1, 6), node_id=st.integers(1, 3))
small_marks = st.builds(
    ConfirmMark,
    epoch=st.integers(0, 3),
    offset=st.integers(0, 6),
    master_uuid=st.sampled_from([UUID, MASTER]),
)
small_parts = st.builds(
    Unverified, begin=st.integers(0, 2), end=st.integers(2, 4), why=st.just("filled")
)
changes = st.one_of(
    st.tuples(st.just(NodeIdentity.see), st.integers(0, 6)),
    st.tuples(st.just(NodeIdentity.cast), small_votes),
    st.tuples(st.just(NodeIdentity.raise_confirm_mark), small_marks),
    st.tuples(st.just(NodeIdentity.lower_confirm_mark), small_marks),
    st.tuples(st.just(NodeIdentity.clear_confirm_mark)),
    st.tuples(st.just(NodeIdentity.mark_unverified), small_parts),
    st.tuples(st.just(NodeIdentity.clear_unverified), small_parts),
    st.tuples(st.just(start)),
)


def rises(before, after):
    """Whether nothing fell that must not fall, no vote changed, and it is the same node's."""

    def epoch(identity):
        return 0 if identity.vote is None else identity.vote.epoch

    return (
        (before.node_id, before.group, before.uuid) == (after.node_id, after.group, after.uuid)
        and before.starts <= after.starts
        and before.kept_since <= after.kept_since
        and before.seen_epoch <= after.seen_epoch
        and (epoch(before) < epoch(after) or before.vote == after.vote)
    )


def change_it(disk, identity, act, arguments):
    """Make a change, which may be a start, on a disk; return the identity after it."""
    if act is start:
        return start(disk)
    changed = NodeIdentity(disk, PATH, identity)
    act(changed, *arguments)
    return changed


@given(
    st.lists(st.tuples(changes, st.sampled_from(["returns", "dies before", "dies after"]))),
    st.randoms(use_true_random=False),
)
def test_a_crash_at_any_change_leaves_the_value_before_it_or_after_it(steps, choices):
    """Whatever the changes and starts before it, and whether it is a kill or a power cut."""
    disk = FakeDisk()
    identity = start(disk).current
    for (act, *arguments), how in steps:
        twin = disk.kill()  # the same change there shows what it would leave
        intended = change_it(twin, identity, act, arguments).current
        dying = DyingDisk.of(disk, dies_at=0 if how == "dies before" else None)
        try:
            returned = change_it(dying, identity, act, arguments).current
        except Killed:
            assert how == "dies before"
            intended = identity
        else:
            assert returned == intended
        disk = FakeDisk(disk=dying.disk)
        if how != "returns":
            disk = choices.choice([disk.kill, disk.cut_power])()
        assert read_identity(disk, "/d") == intended
        assert rises(identity, intended)
        identity = intended
        if how != "returns":
            identity = start(disk).current
            assert identity == attrs.evolve(intended, starts=intended.starts + 1)


@pytest.mark.parametrize("adopt", [False, True])
def test_a_crash_before_the_identity_is_stored_leaves_none(adopt):
    """The next start draws another; a log must be adopted again."""
    disk = FakeDisk()
    if adopt:
        disk.put(f"/d/commitlog/{0:020}", b"x")
    dying = DyingDisk.of(disk, dies_at=0)
    with pytest.raises(Killed):
        start(dying, adopt=adopt)
    left = FakeDisk(disk=dying.disk).kill()
    assert read_identity(left, "/d") is None
    if adopt:
        with pytest.raises(WrongNodeError):
            start(left)
    assert start(left, adopt=adopt).current.starts == 1


# -- the coordinator ------------------------------------------------------------------------------

SEEN = CoordinatorMark(cluster_id=0xA, revision=50, state_revision=40)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"revision": 51, "state_revision": 51}, None),
        ({"state_revision": 0}, None),  # a person has removed the state
        ({"cluster_id": 0xB, "revision": 99}, "etcd was cluster a, now b"),
        ({"revision": 49}, "etcd was at revision 50, now at 49"),
        # Other groups have written since it was restored.
        (
            {"revision": 99, "state_revision": 39},
            "the group's state was of revision 40, now of 39",
        ),
    ],
)
def test_a_coordinator_that_has_gone_back_is_noticed(changes, reason):
    """By its cluster, its revision, or that of the group's state."""
    assert SEEN.went_back(attrs.evolve(SEEN, **changes)) == reason


def test_how_far_the_coordinator_was_is_kept():
    """Also where that is less than before: a person has looked.  Without it the file is as ever."""
    disk = FakeDisk()
    identity = start(disk)
    assert b"coordinator" not in disk.read_file(PATH)
    for mark in (SEEN, attrs.evolve(SEEN, revision=7)):
        identity.see_coordinator(mark)
        assert start(disk).current.coordinator == mark


def test_a_change_of_our_own_is_not_another_process(tmp_path):
    """The file may be new already, and the value not yet: a change is one step for the reader."""
    found = []
    identity = start(RealDisk(), str(tmp_path))

    class Watched(RealDisk):
        def write_file(self, path, data):
            super().write_file(path, data)
            reader = threading.Thread(target=lambda: found.append(identity.is_as_stored()))
            readers.append(reader)
            reader.start()
            reader.join(0.2)  # it waits for the change; without a lock it would not

    readers = []
    identity.disk = Watched()
    identity.see(7)
    readers[0].join()
    assert found == [True]
    (tmp_path / IDENTITY_FILE).write_bytes(
        encode_identity(attrs.evolve(identity.current, starts=9))
    )
    assert not identity.is_as_stored()

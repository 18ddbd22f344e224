"""Consume queues and index against the log: sound stores pass, each damage is named."""

import struct

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.store.index.layout import IndexLayout
from hastore.store.record.layout import TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import Severity
from hastore.store.tools.rebuild import rebuild
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.message_store_model import CONFIG, StorePair, message_of

LAYOUT = IndexLayout(CONFIG.max_hash_slot_num, CONFIG.max_index_num)
QUEUE = "/d/consumequeue/orders/0/"
INDEX = "/d/index/"


def verify(disk, config=CONFIG, path="/d"):
    return verify_derived(disk, path, find_log(disk, path), config)


def damage(report):
    """Kind and physic offset of each damage."""
    return [
        (finding.kind, finding.physic_offset)
        for finding in report.findings
        if finding.severity is Severity.DAMAGE
    ]


def warnings(report):
    return [f.kind for f in report.findings if f.severity is Severity.WARNING]


GOLDEN_CONFIG = StoreConfig(
    data_dir="-", mapped_file_size_consume_queue=1000, max_hash_slot_num=200, max_index_num=400
)


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica", "replica_master", "crashed"])
def test_what_rocketmq_wrote_is_sound(golden, golden_copy, name):
    """Every record's unit and every key of all golden stores."""
    path = str(golden_copy(name))
    report = verify(real_env().disk, GOLDEN_CONFIG, path)
    assert report.findings == ()
    assert report.is_whole
    assert report.is_open == (name == "crashed")
    assert report.records == (56 if name == "propcrc" else 296)
    assert report.units > 45
    assert report.keys == (118 if name == "propcrc" else 399 + 259)
    assert report.units_behind == report.keys_behind == 0


@pytest.fixture(scope="module")
def a_pair():
    """A store of 60 messages in two topics and three queues, stopped; and its model."""
    pair = StorePair()
    for number in range(60):
        pair.clock.ms += 300
        pair.put(
            [
                message_of(
                    "orders" if number % 2 else "x",
                    number % 3 % 2 if number % 2 == 0 else 0,
                    b"b" * (number * 7 % 400 + 1),
                    tags=("red", None)[number % 2],
                    uniq=f"U{number}",
                    keys=["k", f"key-{number}"],
                    sys_flag={
                        20: TRANSACTION_PREPARED_TYPE,
                        22: TRANSACTION_ROLLBACK_TYPE,
                    }.get(number, 0),
                )
            ]
        )
    pair.stop()
    pair.store.close(clean=True)
    return pair


@pytest.fixture
def disk(a_pair):
    return a_pair.disk.kill()


def records_of(pair, topic="orders"):
    """The records of a queue, in order."""
    return [put for put in pair.puts if put.topic == topic and put.queue_offset is not None]


def edit(disk, path, position, data):
    disk.inodes[path].cache[position : position + len(data)] = data


def file_with(disk, queue_offset):
    """Path and position of a unit of orders/0."""
    start = queue_offset * 20 // 160 * 160
    return f"{QUEUE}{start:020d}", queue_offset * 20 - start


def test_a_stores_own_files_are_sound(disk):
    """With nothing to say; the counts are those of the messages."""
    report = verify(disk)
    assert report.findings == ()
    assert (report.records, report.units, report.keys) == (60, 58, 59 * 3)
    assert (report.queues, report.index_files) == (3, 8)
    assert report.has_consume_queues
    assert report.has_index


def test_nothing_to_check_is_no_damage(disk):
    """A log without queues and index, as an older hastore left it."""
    disk.remove_tree("/d/consumequeue")
    disk.remove_tree("/d/index")
    report = verify(disk)
    assert report.is_whole
    assert not report.has_consume_queues
    assert not report.has_index


# -- consume queues --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "data", "says"),
    [
        (0, (3).to_bytes(8, "big"), "points at 3"),
        (8, (77).to_bytes(4, "big"), "size 77"),
        (12, (5).to_bytes(8, "big"), "tags code 5"),
        (0, struct.pack(">qiq", 0, 0x7FFFFFFF, 0), "is blank"),
    ],
)
def test_a_unit_that_is_not_its_records_is_named(a_pair, disk, field, data, says):
    """With topic, queue and queue offset."""
    path, position = file_with(disk, 11)
    edit(disk, path, position + field, data)
    report = verify(disk)
    record = records_of(a_pair)[11]
    assert damage(report) == [("unit-wrong", record.physic_offset)]
    (finding,) = report.findings
    assert says in finding.detail
    assert (finding.topic, finding.queue_id, finding.queue_offset) == ("orders", 0, 11)
    assert finding.next_offset == record.next_offset


@pytest.mark.parametrize(("code", "is_whole"), [(-(2**31) - 1, True), (-(2**31), False)])
def test_an_address_in_place_of_the_tags_is_no_damage(disk, code, is_whole):
    """RocketMQ's ConsumeQueueExt: every number below the least hash code is an address."""
    path, position = file_with(disk, 11)
    edit(disk, path, position + 12, struct.pack(">q", code))
    assert verify(disk).is_whole is is_whole


def test_a_unit_that_points_forward_is_damage_too(disk):
    """A later record could have had the same queue offset; none has."""
    path, position = file_with(disk, 3)
    edit(disk, path, position, (9000).to_bytes(8, "big"))
    assert [kind for kind, _ in damage(verify(disk))] == ["unit-wrong"]


def test_units_that_are_not_there_are_one_finding(a_pair, disk):
    """In the middle of a queue, and at its end after a clean stop."""
    records = records_of(a_pair)
    for first, count in ((5, 2), (len(records) - 3, 3)):
        for number in range(first, first + count):
            path, position = file_with(disk, number)
            edit(disk, path, position, bytes(20))
    report = verify(disk)
    assert damage(report) == [
        ("unit-missing", records[5].physic_offset),
        ("unit-missing", records[-3].physic_offset),
    ]
    assert [finding.detail.split(" ", 1)[0] for finding in report.findings] == ["2", "3"]


def test_a_queue_that_is_behind_is_no_damage_while_a_node_runs(a_pair, disk):
    """Or after a kill: the next start fills it up."""
    disk.put("/d/abort", b"1")
    count = len(records_of(a_pair))
    for number in range(count - 3, count):
        path, position = file_with(disk, number)
        edit(disk, path, position, bytes(20))
    report = verify(disk)
    assert report.is_whole
    assert report.units_behind == 3


def test_a_whole_queue_that_is_gone_is_missing(a_pair, disk):
    """All its records are named as one range."""
    disk.remove_tree("/d/consumequeue/orders")
    records = records_of(a_pair)
    (finding,) = verify(disk).findings
    assert (finding.kind, finding.physic_offset) == ("unit-missing", records[0].physic_offset)
    assert finding.next_offset == records[-1].next_offset


def test_a_unit_behind_a_queues_last_record_is_named(a_pair, disk):
    """It points into the log, where no record of that queue is, or behind the log's end."""
    count = len(records_of(a_pair))
    path, position = file_with(disk, count)
    edit(disk, path, position, struct.pack(">qiq", 500, 100, 0))
    assert damage(verify(disk)) == [("unit-dangling", 500)]
    edit(disk, path, position, struct.pack(">qiq", 10**9, 100, 0))
    assert damage(verify(disk)) == [("unit-dangling", 10**9)]
    disk.put("/d/abort", b"1")
    assert verify(disk).is_whole  # written meanwhile, or cut at the next start


def test_files_of_a_queue_that_cannot_be_used_are_named(disk):
    """A gap between them."""
    paths = sorted(path for path in disk.inodes if path.startswith(QUEUE))
    assert len(paths) == 4
    disk.remove(paths[1])
    kinds = [kind for kind, _ in damage(verify(disk))]
    assert kinds.count("queue-files") == 1
    assert "unit-missing" in kinds


def test_an_expired_front_is_no_damage(disk):
    """Units and keys of records that are deleted are still there, and may be."""
    disk.remove(f"/d/commitlog/{min(disk.files())}")
    disk.remove(f"/d/commitlog/{min(disk.files())}")
    report = verify(disk)
    assert report.findings == ()
    assert 0 < report.records < 60


def test_damage_of_the_log_is_not_told_twice(a_pair, disk):
    """What points at an unreadable record is the log's matter."""
    record = records_of(a_pair)[7]
    name, position = divmod(record.physic_offset, 4096)
    edit(disk, f"/d/commitlog/{name * 4096:020d}", position + 4, b"\xff\xff")
    report = verify(disk)
    assert report.is_whole
    assert report.records == 59


# -- index -----------------------------------------------------------------------------------------


def index_files(disk):
    return [f"{INDEX}{name}" for name in disk.files(INDEX)]


def test_an_entry_with_another_hash_is_a_missing_key(disk):
    """And the link of its chain is wrong."""
    path = index_files(disk)[2]
    edit(disk, path, LAYOUT.entry_position(5), (123456).to_bytes(4, "big"))
    kinds = {kind for kind, _ in damage(verify(disk))}
    assert "index-missing" in kinds
    assert "index-dangling" in kinds


@pytest.mark.parametrize("previous", [20, 9, -1])
def test_a_wrong_link_is_named(disk, previous):
    """A ring, itself, nothing."""
    path = index_files(disk)[1]
    position = LAYOUT.entry_position(9) + 16
    edit(disk, path, position, previous.to_bytes(4, "big", signed=True))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-chain"]


@pytest.mark.parametrize("number", [0, 1, 10**6])
def test_a_wrong_slot_is_named(disk, number):
    """Empty, an older entry, one that is not there."""
    path = index_files(disk)[1]
    edit(disk, path, 40 + 4 * 3, number.to_bytes(4, "big"))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-chain"]


def test_slots_that_are_all_empty_are_named(disk):
    """As a hole in the file leaves them."""
    edit(disk, index_files(disk)[1], 40, bytes(20))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-chain"]


def test_a_wrong_time_is_named(disk):
    """A search in a time window would not find it."""
    path = index_files(disk)[1]
    edit(disk, path, LAYOUT.entry_position(9) + 12, (99).to_bytes(4, "big"))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-time"]


def test_a_header_that_does_not_fit_is_named(disk):
    """Offsets, slots in use; and one that cannot be."""
    path = index_files(disk)[1]
    edit(disk, path, 24, (5000).to_bytes(8, "big"))
    edit(disk, path, 32, (1).to_bytes(4, "big"))
    report = verify(disk)
    assert [kind for kind, _ in damage(report)] == ["index-header"]
    assert warnings(report) == ["index-header"]
    edit(disk, path, 36, (10**6).to_bytes(4, "big"))
    kinds = {kind for kind, _ in damage(verify(disk))}
    assert kinds == {"index-header", "index-missing"}


def test_a_file_that_is_gone_is_one_range_without_keys(disk):
    """In the middle it is damage; at the front the index may have been switched on later."""
    path = index_files(disk)[3]
    disk.remove(path)
    assert [kind for kind, _ in damage(verify(disk))] == ["index-missing"]
    disk.remove(index_files(disk)[0])
    report = verify(disk)
    assert "index-missing" in warnings(report)


def test_an_index_that_is_behind_is_no_damage_while_a_node_runs(disk):
    """Or after a kill."""
    disk.remove(index_files(disk)[-1])
    assert [kind for kind, _ in damage(verify(disk))][:1] == ["index-missing"]
    disk.put("/d/abort", b"1")
    report = verify(disk)
    assert report.keys_behind > 1


def test_keys_that_are_there_twice_are_odd(a_pair, disk):
    """As RocketMQ leaves them after a restart: the last record's once more."""
    last = a_pair.puts[-1]
    path = index_files(disk)[-1]
    image = bytearray(disk.files(INDEX)[path.removeprefix(INDEX)])
    (count,) = struct.unpack_from(">i", image, 36)
    entries = [
        struct.unpack_from(">iqii", image, LAYOUT.entry_position(count - 3 + n)) for n in range(3)
    ]
    assert {entry[1] for entry in entries} == {last.physic_offset}
    for number, (key_hash, offset, seconds, _) in enumerate(entries, start=count):
        slot = 40 + 4 * (key_hash % LAYOUT.slot_count)
        (previous,) = struct.unpack_from(">i", image, slot)
        struct.pack_into(
            ">iqii", image, LAYOUT.entry_position(number), key_hash, offset, seconds, previous
        )
        struct.pack_into(">i", image, slot, number)
    struct.pack_into(">i", image, 36, count + 3)
    disk.put(path, bytes(image))
    report = verify(disk)
    assert report.is_whole
    assert warnings(report) == ["index-doubled"]


def test_an_entry_that_is_no_records_key_is_named(a_pair, disk):
    """It points between records."""
    path = index_files(disk)[1]
    (offset,) = struct.unpack_from(
        ">q", disk.files(INDEX)[path.removeprefix(INDEX)], LAYOUT.entry_position(7) + 4
    )
    edit(disk, path, LAYOUT.entry_position(7) + 4, (offset + 1).to_bytes(8, "big"))
    kinds = {kind for kind, _ in damage(verify(disk))}
    assert "index-dangling" in kinds


def test_files_of_another_size_are_not_read_and_named(disk):
    """The configuration is another one than that of the node."""
    report = verify(disk, StoreConfig(data_dir="/d", mapped_file_size_consume_queue=160))
    assert report.is_whole
    assert not report.has_index
    assert report.index_files == 8
    assert warnings(report) == ["index-header"] * 8


def test_a_rebuild_mends_it_all(disk):
    """What verify names, rebuild builds again."""
    edit(disk, index_files(disk)[1], 40, bytes(20))
    path, position = file_with(disk, 3)
    edit(disk, path, position, bytes(20))
    assert not verify(disk).is_whole
    rebuild(fake_env(disk), "/d", CONFIG, consume_queues=True, index=True)
    report = verify(disk)
    assert report.findings == ()
    assert report.units == 58


def test_a_store_in_use_is_sound(a_pair):
    """Every moment between puts, flushes and stops of a node that runs."""
    pair = StorePair()
    for number in range(80):
        pair.clock.ms += 40
        pair.put([message_of("orders", 0, b"b" * 50, uniq=f"U{number}", keys=["k"])])
        if number % 3 == 0:
            pair.dispatch()
        if number % 7 == 0:
            pair.flush_queues()
        report = verify(pair.disk)
        assert report.is_whole, report.findings
        assert report.is_open
        assert report.units + report.units_behind == number + 1
    assert isinstance(pair.disk, FakeDisk)

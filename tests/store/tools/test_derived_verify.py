"""Check of consume queues and index against the log: reports damage, accepts intact stores."""

import collections
import struct

import attrs
import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.store.index.layout import IndexLayout
from hastore.store.record.layout import TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE
from hastore.store.tools import index_verify
from hastore.store.tools.derived_findings import DerivedFindings
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.index_verify import IndexVerification
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import Severity
from hastore.store.tools.rebuild import rebuild
from tests.support.env.fake_env import fake_env
from tests.support.store.message_store_model import CONFIG, StorePair, message_of

LAYOUT = IndexLayout(CONFIG.max_hash_slot_num, CONFIG.max_index_num)
QUEUE = "/d/consumequeue/orders/0/"
INDEX = "/d/index/"


def verify(disk, config=CONFIG, path="/d"):
    return verify_derived(disk, path, find_log(disk, path), config)


def damage(report):
    """Return kind and physical offset of each damage."""
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
def test_accepts_rocketmqs_stores(golden, golden_copy, name):
    """Every unit and every key of all golden stores is checked."""
    path = str(golden_copy(name))
    report = verify(real_env().disk, GOLDEN_CONFIG, path)
    assert report.findings == ()
    assert report.is_whole
    assert report.is_open == (name == "crashed")
    assert report.records == (56 if name == "propcrc" else 296)
    assert report.units > 45
    assert report.keys == (118 if name == "propcrc" else 399 + 259)
    assert report.units_behind == report.keys_behind == 0


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica", "replica_master", "crashed"])
def test_reads_an_index_of_any_sizes(golden, name):
    """The configuration has RocketMQ's sizes, the golden stores have 200 slots and 400 entries."""
    config = attrs.evolve(GOLDEN_CONFIG, max_hash_slot_num=5_000_000, max_index_num=20_000_000)
    report = verify(real_env().disk, config, str(golden / name))
    assert report.findings == ()
    assert report.has_index
    assert report.keys == (118 if name == "propcrc" else 399 + 259)


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
    """Return a topic's records that have a queue offset, in order."""
    return [put for put in pair.puts if put.topic == topic and put.queue_offset is not None]


def unit_place(disk, queue_offset):
    """Return the path and position of a unit of orders/0."""
    start = queue_offset * 20 // 160 * 160
    return f"{QUEUE}{start:020d}", queue_offset * 20 - start


def test_accepts_an_intact_store(disk):
    """There are no findings, and the counts match the messages."""
    report = verify(disk)
    assert report.findings == ()
    assert (report.records, report.units, report.keys) == (60, 58, 59 * 3)
    assert (report.queues, report.index_files) == (3, 8)
    assert report.has_consume_queues
    assert report.has_index


def test_accepts_a_log_without_queues_and_index(disk):
    """An older hastore left such stores."""
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
def test_reports_a_unit_that_contradicts_its_record(a_pair, disk, field, data, says):
    """The finding has topic, queue and queue offset."""
    path, position = unit_place(disk, 11)
    disk.overwrite(path, position + field, data)
    report = verify(disk)
    record = records_of(a_pair)[11]
    assert damage(report) == [("unit-wrong", record.physic_offset)]
    (finding,) = report.findings
    assert says in finding.detail
    assert (finding.topic, finding.queue_id, finding.queue_offset) == ("orders", 0, 11)
    assert finding.next_offset == record.next_offset


@pytest.mark.parametrize(("code", "is_whole"), [(-(2**31) - 1, True), (-(2**31), False)])
def test_accepts_an_ext_address_in_place_of_the_tags_code(disk, code, is_whole):
    """RocketMQ's ConsumeQueueExt: every number below the least hash code is an address."""
    path, position = unit_place(disk, 11)
    disk.overwrite(path, position + 12, struct.pack(">q", code))
    assert verify(disk).is_whole is is_whole


def test_unit_that_points_forward_is_damage(disk):
    """A later record could have had the same queue offset, but none has."""
    path, position = unit_place(disk, 3)
    disk.overwrite(path, position, (9000).to_bytes(8, "big"))
    assert [kind for kind, _ in damage(verify(disk))] == ["unit-wrong"]


def test_consecutive_missing_units_are_one_finding(a_pair, disk):
    """They are in the middle of a queue and, after a clean stop, at its end."""
    records = records_of(a_pair)
    for first, count in ((5, 2), (len(records) - 3, 3)):
        for number in range(first, first + count):
            path, position = unit_place(disk, number)
            disk.overwrite(path, position, bytes(20))
    report = verify(disk)
    assert damage(report) == [
        ("unit-missing", records[5].physic_offset),
        ("unit-missing", records[-3].physic_offset),
    ]
    assert [finding.detail.split(" ", 1)[0] for finding in report.findings] == ["2", "3"]


def test_incomplete_queue_of_a_running_node_is_no_damage(a_pair, disk):
    """The same holds after a kill: the next start completes the queue."""
    disk.put("/d/abort", b"1")
    count = len(records_of(a_pair))
    for number in range(count - 3, count):
        path, position = unit_place(disk, number)
        disk.overwrite(path, position, bytes(20))
    report = verify(disk)
    assert report.is_whole
    assert report.units_behind == 3


def test_reports_a_missing_queue_as_one_range(a_pair, disk):
    """The range covers all of its records."""
    disk.remove_tree("/d/consumequeue/orders")
    records = records_of(a_pair)
    (finding,) = verify(disk).findings
    assert (finding.kind, finding.physic_offset) == ("unit-missing", records[0].physic_offset)
    assert finding.next_offset == records[-1].next_offset


def test_reports_a_unit_after_the_last_record_of_a_queue(a_pair, disk):
    """It points to no record of that queue, or to an offset after the log's end."""
    count = len(records_of(a_pair))
    path, position = unit_place(disk, count)
    disk.overwrite(path, position, struct.pack(">qiq", 500, 100, 0))
    assert damage(verify(disk)) == [("unit-dangling", 500)]
    disk.overwrite(path, position, struct.pack(">qiq", 10**9, 100, 0))
    assert damage(verify(disk)) == [("unit-dangling", 10**9)]
    disk.put("/d/abort", b"1")
    assert verify(disk).is_whole  # just written, or truncated at the next start


def test_reports_a_gap_between_the_files_of_a_queue(disk):
    """The units of the lost file are reported as missing."""
    paths = sorted(path for path in disk.inodes if path.startswith(QUEUE))
    assert len(paths) == 4
    disk.remove(paths[1])
    kinds = [kind for kind, _ in damage(verify(disk))]
    assert kinds.count("queue-files") == 1
    assert "unit-missing" in kinds


def test_units_and_keys_of_expired_records_are_no_damage(disk):
    """Queue and index files stay until all of their records have expired."""
    disk.remove(f"/d/commitlog/{min(disk.files())}")
    disk.remove(f"/d/commitlog/{min(disk.files())}")
    report = verify(disk)
    assert report.findings == ()
    assert 0 < report.records < 60


def test_log_damage_is_reported_once(a_pair, disk):
    """The check of the log reports an unreadable record, so this check skips its unit and keys."""
    record = records_of(a_pair)[7]
    name, position = divmod(record.physic_offset, 4096)
    disk.overwrite(f"/d/commitlog/{name * 4096:020d}", position + 4, b"\xff\xff")
    report = verify(disk)
    assert report.is_whole
    assert report.records == 59


# -- index -----------------------------------------------------------------------------------------


def index_files(disk):
    return [f"{INDEX}{name}" for name in disk.files(INDEX)]


def test_reports_an_entry_with_a_wrong_hash(disk):
    """The record's key is missing, and the entry belongs to no key."""
    path = index_files(disk)[2]
    disk.overwrite(path, LAYOUT.entry_position(5), (123456).to_bytes(4, "big"))
    kinds = {kind for kind, _ in damage(verify(disk))}
    assert "index-missing" in kinds
    assert "index-dangling" in kinds


@pytest.mark.parametrize("previous", [20, 9, -1])
def test_reports_a_wrong_link(disk, previous):
    """It points to a later entry, to its own entry, or to none."""
    path = index_files(disk)[1]
    position = LAYOUT.entry_position(9) + 16
    disk.overwrite(path, position, previous.to_bytes(4, "big", signed=True))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-chain"]


@pytest.mark.parametrize("number", [0, 1, 10**6])
def test_reports_a_wrong_slot(disk, number):
    """It is empty, or points to an older entry or to none."""
    path = index_files(disk)[1]
    disk.overwrite(path, 40 + 4 * 3, number.to_bytes(4, "big"))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-chain"]


def test_reports_slots_that_are_all_empty(disk):
    """A hole in the file leaves them so."""
    disk.overwrite(index_files(disk)[1], 40, bytes(20))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-chain"]


def test_reports_a_wrong_time(disk):
    """A search in a time window would miss the record."""
    path = index_files(disk)[1]
    disk.overwrite(path, LAYOUT.entry_position(9) + 12, (99).to_bytes(4, "big"))
    assert [kind for kind, _ in damage(verify(disk))] == ["index-time"]


def test_reports_damage_in_an_index_of_any_sizes(disk):
    """A wrong time and a slot that leads nowhere, in files of 5 slots and 25 entries."""
    path = index_files(disk)[1]
    disk.overwrite(path, LAYOUT.entry_position(9) + 12, (99).to_bytes(4, "big"))
    disk.overwrite(path, 40 + 4 * 3, bytes(4))
    config = attrs.evolve(CONFIG, max_hash_slot_num=200, max_index_num=400)
    as_configured = verify(disk)
    report = verify(disk, config)
    assert damage(report) == damage(as_configured)
    assert report.keys == as_configured.keys


def test_reports_a_header_that_contradicts_the_entries(disk):
    """Its offset or number of slots in use is wrong, or its count impossible."""
    path = index_files(disk)[1]
    disk.overwrite(path, 24, (5000).to_bytes(8, "big"))
    disk.overwrite(path, 32, (1).to_bytes(4, "big"))
    report = verify(disk)
    assert [kind for kind, _ in damage(report)] == ["index-header"]
    assert warnings(report) == ["index-header"]
    disk.overwrite(path, 36, (10**6).to_bytes(4, "big"))
    kinds = {kind for kind, _ in damage(verify(disk))}
    assert kinds == {"index-header", "index-missing"}


def test_reports_a_missing_index_file_as_one_range(disk):
    """In the middle it is damage; at the front the index may have been enabled later."""
    path = index_files(disk)[3]
    disk.remove(path)
    assert [kind for kind, _ in damage(verify(disk))] == ["index-missing"]
    disk.remove(index_files(disk)[0])
    report = verify(disk)
    assert "index-missing" in warnings(report)


def test_incomplete_index_of_a_running_node_is_no_damage(disk):
    """The same holds after a kill."""
    disk.remove(index_files(disk)[-1])
    assert [kind for kind, _ in damage(verify(disk))][:1] == ["index-missing"]
    disk.put("/d/abort", b"1")
    report = verify(disk)
    assert report.is_whole, report.findings
    assert report.keys_behind > 1


def test_duplicate_keys_are_a_warning(a_pair, disk):
    """RocketMQ indexes the last record once more after a restart."""
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


def test_reports_an_entry_that_points_between_records(a_pair, disk):
    """No record begins at its offset."""
    path = index_files(disk)[1]
    (offset,) = struct.unpack_from(
        ">q", disk.files(INDEX)[path.removeprefix(INDEX)], LAYOUT.entry_position(7) + 4
    )
    disk.overwrite(path, LAYOUT.entry_position(7) + 4, (offset + 1).to_bytes(8, "big"))
    kinds = {kind for kind, _ in damage(verify(disk))}
    assert "index-dangling" in kinds


@pytest.mark.parametrize("number", [2, 7, 12])
@pytest.mark.parametrize("moved_by", [1, -1, 3_000, -40, 2**40])
def test_an_entry_with_a_wrong_offset_does_not_affect_those_after_it(disk, number, moved_by):
    """Only that entry dangles, wherever it points, and only its record lacks its key."""
    path = index_files(disk)[1]
    position = LAYOUT.entry_position(number) + 4
    (offset,) = struct.unpack_from(">q", disk.files(INDEX)[path.removeprefix(INDEX)], position)
    disk.overwrite(path, position, struct.pack(">q", offset + moved_by))
    found = collections.Counter(kind for kind, _ in damage(verify(disk)))
    assert found["index-dangling"] == 1
    assert found["index-missing"] <= 1


def test_entries_out_of_order_are_all_reported_within_bounded_memory(disk, monkeypatch):
    """Entries beyond the bound are reported, too."""
    path = index_files(disk)[1]
    for number in (3, 6, 9, 12):
        disk.overwrite(path, LAYOUT.entry_position(number) + 4, struct.pack(">q", 2**40 - number))
    unbounded = sum(kind == "index-dangling" for kind, _ in damage(verify(disk)))
    assert unbounded == 4
    monkeypatch.setattr(index_verify, "_OUT_OF_ORDER_MAX", 2)
    reported = {at for kind, at in damage(verify(disk)) if kind == "index-dangling"}
    assert {2**40 - 3, 2**40 - 6, 2**40 - 9} <= reported


def test_entries_after_the_end_of_the_log_are_read_one_after_another(disk, monkeypatch):
    """An index beside an empty log may have millions of entries, which fit in no list."""
    findings = DerivedFindings(min_offset=0, is_open=False)
    reads = []
    monkeypatch.setattr(findings, "add", lambda _finding: reads.append(disk.reads))
    IndexVerification(disk, "/d", LAYOUT, findings).end(0)
    assert len(reads) > 100
    assert reads[0] < reads[len(reads) // 2] < reads[-1]


def test_reports_index_files_of_another_size_whose_header_fits_none(disk):
    """The configuration is not the node's, and the header does not show the sizes either."""
    for path in index_files(disk):
        disk.overwrite(path, 16, bytes([0, 0, 0, 0, 0, 0, 0, 1] * 2))
    report = verify(disk, StoreConfig(data_dir="/d", mapped_file_size_consume_queue=160))
    assert report.is_whole
    assert not report.has_index
    assert report.index_files == 8
    assert warnings(report) == ["index-header"] * 8


def test_rebuild_repairs_all_reported_damage(disk):
    """Afterwards there are no findings, and all units exist."""
    disk.overwrite(index_files(disk)[1], 40, bytes(20))
    path, position = unit_place(disk, 3)
    disk.overwrite(path, position, bytes(20))
    assert not verify(disk).is_whole
    rebuild(fake_env(disk), "/d", CONFIG, consume_queues=True, index=True)
    report = verify(disk)
    assert report.findings == ()
    assert report.units == 58


def test_accepts_a_store_in_use():
    """It is checked after each put, dispatch and flush of a running node."""
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

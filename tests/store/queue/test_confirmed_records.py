"""Records behind damage: only those that their consume queue names are records.

A producer plants whole records in a body; then the head of the record around them is damaged.
"""

import itertools

import pytest

from hastore.store.queue import confirmed_records
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.queue.unit import UNIT
from hastore.store.record.message_codec import encode_blank
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_directory import find_log, read_at
from hastore.store.tools.log_walker import LogWalker
from tests.support.store.log_builder import LogBuilder

BIG = 1 << 16
HEAD = b"\xff" * 8


def attacked(*, after=5, **fields):
    """Return a log with planted records, and where the record around them begins."""
    builder = LogBuilder(file_size=BIG).fill(5).plant(**fields)
    around = builder.offsets[-1]
    return builder.fill(after), around


def damaged(builder, offset, data=HEAD):
    """Return the log's bytes with others at an offset."""
    at = offset - builder.min_offset
    return builder.data[:at] + data + builder.data[at + len(data) :]


def walked(disk, **options):
    """Return offsets of messages, and (offset, size, unconfirmed) of damage."""
    log = find_log(disk, "/d")
    items = list(LogWalker(disk, log, **options).walk())
    messages = [offset for offset, check in items if check.kind is RecordKind.MESSAGE]
    others = {RecordKind.MESSAGE, RecordKind.BLANK}
    damage = [(o, c.size, c.unconfirmed) for o, c in items if c.kind not in others]
    return messages, damage


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("position", [0, 4, 84], ids=["size", "magic", "body length"])
def test_planted_records_behind_damage_are_no_messages(position, check_crc):
    """Whichever field hides where the record around them ends; they are counted."""
    builder, around = attacked()
    disk = builder.on_disk(damaged(builder, around + position))
    end = builder.offsets[builder.offsets.index(around) + 1]
    messages, damage = walked(disk, check_crc=check_crc)
    assert messages == [offset for offset in builder.offsets if offset != around]
    assert damage == [(around, end - around, 3)]


def test_without_queues_nothing_behind_damage_is_confirmed_in_its_file():
    """The next file begins with a record; and a log without a store has no queues at all."""
    builder, around = attacked(after=800)
    disk = builder.on_disk(damaged(builder, around), queues=False)
    messages, ((start, size, unconfirmed),) = walked(disk)
    assert (start, start + size) == (around, BIG)
    assert messages == [o for o in builder.offsets if o < around or o >= BIG]
    assert messages[-1] == builder.offsets[-1]
    assert unconfirmed == 3 + sum(around < offset < BIG for offset in builder.offsets)


def test_unconfirmed_records_are_items_only_on_request():
    """They are of a kind of their own, lie inside the damage, and end to end with it."""
    builder, around = attacked()
    disk = builder.on_disk(damaged(builder, around))
    items = list(LogWalker(disk, find_log(disk, "/d"), unconfirmed=True).walk())
    assert [o for o, c in items if c.kind is RecordKind.UNCONFIRMED] == builder.planted
    for (offset, check), (following, _) in itertools.pairwise(items):
        assert offset + check.size == following


def test_a_planted_blank_hides_no_record():
    """A BLANK in a body that reaches exactly to the file's end would hide the rest of the file."""
    builder = LogBuilder(file_size=BIG).fill(5)
    around = builder.end
    at = 88 + 50
    blank = encode_blank(BIG - around - at)
    builder.add(b"p" * 50 + blank + b"q" * 50, topic="mine").fill(5)
    for queues in True, False:
        disk = builder.on_disk(damaged(builder, around), queues=queues)
        messages, damage = walked(disk)
        assert len(damage) == 1
        assert messages == [o for o in builder.offsets if o < around or (queues and o > around)]


def test_a_record_without_a_unit_is_reached_from_one_that_has_one():
    """Half a transaction has no unit; it follows the end that the damaged record's unit names."""
    builder = LogBuilder(file_size=BIG).fill(2).plant()
    around = builder.offsets[-1]
    builder.add(b"half", sys_flag=4).fill(2)
    messages, damage = walked(builder.on_disk(damaged(builder, around)))
    assert messages == [offset for offset in builder.offsets if offset != around]
    assert [start for start, _, _ in damage] == [around]


def test_a_unit_confirms_only_a_record_of_its_own_topic_queue_and_place():
    """Units that name the planted records, as damaged ones may, confirm none of them."""
    builder, around = attacked()
    disk = builder.on_disk(damaged(builder, around))
    log = find_log(disk, "/d")
    for place, planted in enumerate(builder.planted):
        check = check_record(read_at(disk, log, planted, 500), 0, 500, planted)
        for name in ("other/0", "secret/1"):
            path = f"/d/consumequeue/{name}/00000000000000000000"
            disk.make_dirs(path.rpartition("/")[0])
            disk.put(path, (UNIT.pack(planted, check.size, 0) * 50))
        path = "/d/consumequeue/secret/0/00000000000000000000"
        disk.make_dirs(path.rpartition("/")[0])
        unit = UNIT.pack(planted, check.size, 0)
        disk.put(path, bytes(20 * (place + 5)) + unit + bytes(20 * (50 - place - 6)))
        messages, _ = walked(disk)
        assert not set(builder.planted) & set(messages)


def test_a_topic_that_is_a_path_is_not_opened():
    """A planted topic never names a file outside of the queues that are listed."""
    builder, around = attacked(topic="../../etc")
    disk = builder.on_disk(damaged(builder, around))
    opened = []
    disk.before("open_file", lambda call: opened.append(call.path))
    messages, _ = walked(disk)
    assert not set(builder.planted) & set(messages)
    check = check_record(builder.data, around, len(builder.data), around)
    confirmed = ConfirmedRecords(disk, "/d")
    assert not confirmed.names(around, check._replace(topic=b"../../etc"))
    assert not any(".." in path for path in opened)


@pytest.mark.parametrize("window", [64, 1_000, 1 << 22])
def test_units_are_found_in_windows_of_any_size(monkeypatch, window):
    """The end of damage and the last record before a place do not depend on how much is read."""
    monkeypatch.setattr(confirmed_records, "_WINDOW_SIZE_MIN", window)
    builder = LogBuilder(file_size=BIG).fill(120, topic="a").fill(60, topic="b")
    first, last = builder.offsets[40], builder.offsets[110]
    data = damaged(builder, first, b"\xa5" * (last - first))
    disk = builder.on_disk(data)
    messages, damage = walked(disk)
    assert damage == [(first, last - first, 0)]
    assert messages == [o for o in builder.offsets if not first <= o < last]
    confirmed = ConfirmedRecords(disk, "/d")

    def read(physic_offset, size):
        return bytes(data[physic_offset : physic_offset + size])

    assert confirmed.last_before(builder.offsets[130] + 7, 0, read) == builder.offsets[130]
    assert confirmed.last_before(builder.offsets[80], 0, read) == builder.offsets[39]
    assert confirmed.first_from(first, len(data), read) == last
    assert ConfirmedRecords(disk, None).last_before(900, 0, read) == 0


def test_a_queue_that_cannot_be_read_confirms_nothing():
    """Damage in a queue, too, makes fewer records, never more."""
    builder, around = attacked()
    disk = builder.on_disk(damaged(builder, around))
    for path in list(disk.inodes):
        if "/orders/" in path:
            disk.put(path, b"\xa5" * 1_000)
    messages, damage = walked(disk)
    assert not set(builder.planted) & set(messages)
    assert damage[0][0] == around

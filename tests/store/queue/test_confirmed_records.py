"""Records behind damage: only those that their consume queue names are records.

A producer plants whole records in a body; then the head of the record around them is damaged.
"""

import itertools
import random

import pytest

from hastore.store.queue import confirmed_records
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.queue.unit import BLANK, UNIT, UNIT_SIZE
from hastore.store.record.layout import SIZE
from hastore.store.record.message_codec import encode_blank
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_directory import find_log, read_at
from hastore.store.tools.log_walker import LogWalker
from tests.support.store.log_builder import QUEUE_FILE_SIZE, LogBuilder

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


def test_a_walk_says_nothing_about_the_size_of_queue_files(caplog):
    """It knows no configured size, so no file has another one; foreign names are the node's."""
    builder, around = attacked()
    disk = builder.on_disk(damaged(builder, around))
    disk.put("/d/consumequeue/notes", b"x")
    with caplog.at_level("WARNING"):
        assert walked(disk)[1]
    assert caplog.text == ""


def test_a_cut_queue_file_of_one_unit_does_not_hide_the_other_queues():
    """The size that most files have counts."""
    builder, around = attacked()
    disk = builder.on_disk(damaged(builder, around))
    disk.put(f"/d/consumequeue/cut/0/{0:020d}", bytes(UNIT_SIZE))
    disk.put(f"/d/consumequeue/cut/1/{0:020d}", bytes(QUEUE_FILE_SIZE))
    messages, _ = walked(disk)
    assert messages == [offset for offset in builder.offsets if offset != around]


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


# -- what a look costs ---------------------------------------------------------------------------


def reads_of(disk, walk):
    """Return what a walk returns, and how often it opened and read files of consume queues."""
    calls = []
    for name in ("open_file", "pread"):
        disk.before(name, lambda call: calls.append(call.name), path="/consumequeue/")
    result = walk()
    return result, calls.count("open_file"), calls.count("pread")


def with_idle_queues(builder, data, count):
    """Return a disk with a log, its queues, and others that have a few units of its beginning."""
    disk = builder.on_disk(data)
    units = b"".join(UNIT.pack(offset, 100, 0) for offset in range(3))
    for number in range(count):
        disk.put(f"/d/consumequeue/idle/{number}/{0:020d}", units.ljust(QUEUE_FILE_SIZE, b"\0"))
    return disk


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("check_crc", [True, False])
def test_a_torn_end_needs_no_look_at_any_queue(check_crc, ipv6):
    """A slave's last message may have begun at any byte; nothing can follow it."""
    builder = LogBuilder(file_size=BIG).fill(3)
    hosts = {"born_host": ("::1", 1), "store_host": ("::1", 1), "sys_flag": 48} if ipv6 else {}
    start = builder.end
    builder.add(b"x" * 150, **hosts)
    for end in range(start, builder.end):
        disk = with_idle_queues(builder, builder.data[:end], 3)
        (messages, damage), opened, read = reads_of(
            disk, lambda disk=disk: walked(disk, check_crc=check_crc)
        )
        assert (opened, read) == (0, 0), end - start
        assert messages[:3] == builder.offsets[:3]
        assert {offset for offset, _, _ in damage} <= {start}


@pytest.mark.parametrize("size", [1, 40, 300])
def test_a_size_that_damage_enlarged_hides_no_later_record(size):
    """The head alone would pass for a record that has only begun; its texts contradict it."""
    builder = LogBuilder(file_size=BIG).fill(5)
    first = builder.offsets[2]
    claimed = builder.offsets[3] - first
    reach = builder.end - first if size == 300 else claimed + size
    messages, damage = walked(builder.on_disk(damaged(builder, first, SIZE.pack(reach))))
    assert messages == [o for o in builder.offsets if o != first]
    assert damage == [(first, claimed, 0)]


def test_damage_is_looked_behind_at_the_cost_of_the_queues_not_of_the_file():
    """One open of each file; a read of an idle queue, and some more by halving of a long one."""
    idle, big = 40, 1 << 30
    builder = LogBuilder(file_size=1 << 20).fill(3_000)
    around = builder.offsets[2_000]
    disk = builder.on_disk()
    units = b"".join(disk.files("/d/consumequeue/orders/0/").values())
    for path in [path for path in disk.inodes if "/consumequeue/" in path]:
        del disk.inodes[path]
    file_size = 30_000 * UNIT_SIZE
    disk.put(f"/d/consumequeue/orders/0/{0:020d}", units.ljust(file_size, b"\0"))
    for number in range(idle):
        data = UNIT.pack(number, 100, 0).ljust(file_size, b"\0")
        disk.put(f"/d/consumequeue/idle/{number}/{0:020d}", data)

    def read(physic_offset, size):
        return bytes(log[physic_offset : physic_offset + size])

    log = damaged(builder, around)
    confirmed = ConfirmedRecords(disk, "/d")
    found, opened, count = reads_of(disk, lambda: confirmed.resume_after(around, big, read))
    assert found == builder.offsets[2_001]
    assert opened == idle + 1
    assert count <= idle + 2 * 12 + 1_000 // 200 + 3  # 3,000 units are 15 chunks
    # Nothing is confirmed: all that is read is what shows it, and it is not read again.
    confirmed = ConfirmedRecords(disk, "/d")
    found, opened, count = reads_of(
        disk, lambda: confirmed.resume_after(builder.end + 9, big, bytes)
    )
    assert (found, opened) == (None, idle + 1)
    assert count <= idle + 2 * 12 + 3
    calls = disk.counts["open_file"]
    assert confirmed.resume_after(builder.end + 99, big, bytes) is None
    assert disk.counts["open_file"] == calls


@pytest.mark.parametrize("seed", range(30))
def test_units_are_those_that_a_read_of_whole_queues_finds(monkeypatch, seed):
    """Whatever the windows, the chunks, the files and the blanks, and in either direction."""
    rng = random.Random(seed)
    monkeypatch.setattr(confirmed_records, "_WINDOW_SIZE_MIN", rng.choice([50, 3_000, 1 << 22]))
    monkeypatch.setattr(confirmed_records, "_CHUNK_SIZE", rng.choice([2, 4, 7]) * UNIT_SIZE)
    file_size = rng.choice([6, 20, 50]) * UNIT_SIZE
    disk = LogBuilder().fill(1).on_disk(queues=False)
    end = 300 * 100
    queues = [[] for _ in range(rng.randrange(1, 6))]
    for offset in range(0, end, 100):
        queue = rng.choice(queues)
        if rng.random() < 0.1:
            queue += [BLANK] * rng.choice([1, 9])
        queue.append(UNIT.pack(offset, 100, 0))
    for number, units in enumerate(queues):
        first = rng.choice([0, 3]) * file_size
        data = b"".join(units)
        for start in range(0, len(data), file_size):
            piece = data[start : start + file_size].ljust(file_size, b"\0")
            disk.put(f"/d/consumequeue/t/{number}/{first + start:020d}", piece)
    confirmed = ConfirmedRecords(disk, "/d")
    monkeypatch.setattr(ConfirmedRecords, "_is_confirmed", lambda _, unit, read: read(unit))
    for _ in range(20):
        begin, stop = sorted(rng.sample(range(end + 500), 2))
        seen = []
        confirmed.first_from(begin, stop, lambda unit, seen=seen: seen.append(unit[0]))
        assert seen == [o for o in range(0, end, 100) if begin <= o < stop]
        seen = []
        confirmed.last_before(stop, begin, lambda unit, seen=seen: seen.append(unit[0]))
        assert seen == [o for o in reversed(range(0, end, 100)) if begin <= o <= stop]


def test_one_damaged_unit_hides_no_other():
    """Halving does not follow a unit that names another place than those around it."""
    builder = LogBuilder(file_size=1 << 20).fill(2_000)
    first = builder.offsets[500]
    for wrong in (0, 1 << 40):
        disk = builder.on_disk(damaged(builder, first))
        units = bytearray(b"".join(disk.files("/d/consumequeue/orders/0/").values()))
        for path in [path for path in disk.inodes if "/consumequeue/" in path]:
            del disk.inodes[path]
        for number in range(199, 2_000, 200):
            units[number * UNIT_SIZE : (number + 1) * UNIT_SIZE] = UNIT.pack(wrong, 100, 0)
        data = bytes(units).ljust(5_000 * UNIT_SIZE, b"\0")
        disk.put(f"/d/consumequeue/orders/0/{0:020d}", data)
        messages, _ = walked(disk)
        assert messages == [o for o in builder.offsets if o != first]

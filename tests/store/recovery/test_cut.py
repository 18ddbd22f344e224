"""The cut of a closed store: what is refused, what is taken, and that nothing of it comes back."""

import contextlib
import itertools
import json
import logging
import random
from collections import Counter

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.epoch_history import EpochEntry, EpochHistory, EpochSpan
from hastore.errors import (
    BelowConfirmMarkError,
    CutRefusedError,
    DiskFullError,
    EpochFileError,
    UnfinishedCutError,
)
from hastore.message import PROPERTY_UNIQ_KEY, Message
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.index.layout import IndexLayout
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import DELAY_OFFSET_FILE
from hastore.store.record.layout import TRANSACTION_PREPARED_TYPE
from hastore.store.recovery.log_cut import CutIntent
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.topic import SCHEDULE_TOPIC
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.cutting import (
    KEYS,
    REASON,
    TOPICS,
    assert_saved,
    closed_store,
    complete,
    contents,
    cut,
    log_bytes,
    put_some,
    reopened,
)
from tests.support.store.message_store_model import CONFIG, FILE_SIZE, StorePair, message_of
from tests.support.store.open_log import open_log

EPOCHS = f"/d/{EPOCH_FILE}"


def kept(store, offset):
    return tuple(put for put in store.puts if put.next_offset <= offset)


def everything(disk):
    """All files, but not ``lock``."""
    return {path: inode.seen() for path, inode in disk.inodes.items() if path != "/d/lock"}


def stop(pair):
    """Stop a node cleanly, and return its disk."""
    pair.dispatch()
    pair.flush_queues()
    pair.flush_log()
    pair.write_checkpoint()
    pair.store.close(clean=True)
    return pair.disk.kill()


# -- what is cut ---------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 80), st.booleans(), st.data())
def test_cut_store_equals_one_that_never_had_the_rest(seed, count, clean, data):
    """At any record of any store: the model is the list of its messages, without those cut."""
    store = closed_store(seed, count, clean=clean, epochs=min(3, count))
    offset = data.draw(st.sampled_from([*store.cut_points, store.end_offset]))
    image = log_bytes(store.disk)
    disk = store.disk.kill()
    done = cut(disk, offset)
    log = log_bytes(disk)
    assert log[:offset] == image[:offset][: len(log)]
    assert not log[offset:].strip(b"\0")
    if offset < store.end_offset:
        assert done is not None
        assert done.physic_offset == offset
        assert done.end_offset == len(image.rstrip(b"\0")) or clean
        assert_saved(disk, image, offset, done.end_offset)
        lost = Counter(put.topic for put in store.puts if put.physic_offset >= offset)
        assert done.messages == dict(sorted(lost.items()))
    else:
        assert done is None
        assert not disk.files("/d/trimmed/")
    assert EpochFile(disk, EPOCHS).load() == store.epochs.cut(offset)
    pair = reopened(disk, kept(store, offset))
    pair.check_all(TOPICS, (0, 1), KEYS)
    put_some(pair, random.Random(seed), 10)
    pair.stop()
    pair.check_all(TOPICS, (0, 1), KEYS)


def test_bytes_are_described_in_a_log_line_and_beside_them(caplog):
    """Range, epochs of the bytes, whole messages by topic, reason, and where the bytes are."""
    store = closed_store(3)
    offset = store.cut_points[20]
    with caplog.at_level(logging.WARNING):
        done = cut(store.disk, offset)
    assert done.size == store.end_offset - offset
    assert done.epochs[0].start_offset == offset
    assert done.epochs[-1].end_offset == store.end_offset
    assert [span.epoch for span in done.epochs] == [
        span.epoch for span in store.epochs.spans(store.end_offset) if span.end_offset > offset
    ]
    assert json.loads(store.disk.inodes[f"/d/{done.path}"].seen()) == {
        "schema": "hastore.cut/1",
        "offset": offset,
        "end": store.end_offset,
        "reason": REASON,
        "time_ms": done.time_ms,
        "epochs": [{"epoch": e, "from": f, "to": t} for e, f, t in done.epochs],
        "messages": done.messages,
        "unread_from": None,
        "files": list(done.saved_paths),
    }
    (line,) = [line for line in caplog.text.splitlines() if "log_cut" in line]
    for text in (str(offset), str(store.end_offset), REASON, *done.saved_paths, *done.messages):
        assert text in line


def test_delay_offsets_pass_no_message_that_follows_the_cut():
    """They counted deliveries of messages that are gone; wherever the cut is killed."""
    pair = StorePair()
    for number in range(6):
        pair.put([Message(SCHEDULE_TOPIC, b"%d" % number, queue_id=2)])
    offset = pair.puts[4].physic_offset
    disk = stop(pair)
    path = f"/d/{DELAY_OFFSET_FILE}"
    disk.put(path, b'{"offsetTable":{"3":6,"4":9,"x":"y"},"dataVersion":{"counter":1}}')
    intent = DyingDisk.of(disk)
    cut(intent, offset)
    begins_at = next(n for n, name in enumerate(intent.operations) if "cut.json" in name) + 1
    for dies_at in range(begins_at, len(intent.operations) + 1):
        dying = DyingDisk.of(disk, dies_at)
        with contextlib.suppress(Killed):
            cut(dying, offset)
        killed = dying.kill()
        complete(killed)
        assert json.loads(killed.read_file(path)) == {
            "offsetTable": {"3": 4, "4": 9, "x": "y"},
            "dataVersion": {"counter": 1},
        }


def test_bytes_without_an_epoch_are_cut_too():
    """A classic store has no epoch file, and gets none."""
    store = closed_store(3, epochs=0)
    done = cut(store.disk, store.cut_points[5])
    assert done.epochs == ()
    assert EPOCHS not in store.disk.inodes


def test_emptied_epoch_list_is_stored():
    """RocketMQ does not write an empty list, so its old text is back after a restart."""
    store = closed_store(3)
    assert cut(store.disk, 0).epochs[0] == EpochSpan(1, 0, store.epochs.entries[1].start_offset)
    assert store.disk.inodes[EPOCHS].seen() == b"0\n0\n"
    assert reopened(store.disk, ()).end == 0


def test_second_cut_at_the_same_offset_changes_nothing():
    """And makes no file in trimmed/."""
    store = closed_store(3)
    offset = store.cut_points[17]
    assert cut(store.disk, offset) is not None
    before = everything(store.disk)
    assert cut(store.disk, offset) is None
    assert everything(store.disk) == before


def test_cut_at_the_end_drops_only_epochs_without_bytes():
    """There is nothing to keep, so nothing is copied."""
    store = closed_store(3)
    entries = (*store.epochs.entries, EpochEntry(99, store.end_offset))
    EpochFile(store.disk, EPOCHS).store(EpochHistory(entries))
    before = everything(store.disk)
    assert cut(store.disk, store.end_offset) is None
    assert EpochFile(store.disk, EPOCHS).load() == store.epochs
    after = everything(store.disk)
    assert before.keys() == after.keys()
    assert {path for path in after if before[path] != after[path]} == {EPOCHS}


def test_half_a_record_at_the_end_is_cut_and_kept():
    """A slave's log may end inside a record, where a frame ended."""
    store = closed_store(3)
    last = store.puts[-1]
    path = f"/d/commitlog/{file_name(last.physic_offset - last.physic_offset % FILE_SIZE)}"
    half = last.physic_offset % FILE_SIZE + 60
    image = bytearray(store.disk.inodes[path].seen())
    image[half:] = bytes(FILE_SIZE - half)
    store.disk.put(path, bytes(image))
    end = len(log_bytes(store.disk).rstrip(b"\0"))
    image = log_bytes(store.disk)
    done = cut(store.disk, last.physic_offset)
    assert (done.end_offset, done.messages, done.unread_from) == (end, {}, None)
    assert_saved(store.disk, image, last.physic_offset, end)
    assert not log_bytes(store.disk)[last.physic_offset :].strip(b"\0")


def test_a_cut_says_where_damage_has_ended_its_count():
    """All of it is cut and kept: there may be more messages than were counted."""
    store = closed_store(3)
    first, second, third = (store.puts[at] for at in (-3, -2, -1))
    path = f"/d/commitlog/{file_name(second.physic_offset - second.physic_offset % FILE_SIZE)}"
    image = bytearray(store.disk.inodes[path].seen())
    image[second.physic_offset % FILE_SIZE + 1] ^= 0xFF  # its size
    store.disk.put(path, bytes(image))
    done = cut(store.disk, first.physic_offset)
    assert sum(done.messages.values()) == 1
    assert done.unread_from == second.physic_offset
    assert done.end_offset == third.next_offset
    assert json.loads(store.disk.read_file(f"/d/{done.path}"))["unread_from"] == done.unread_from


def test_prepared_file_of_a_killed_node_is_removed():
    """It comes after the end, and is all zeros."""
    store = closed_store(3, clean=False)
    names = sorted(store.disk.files())
    store.disk.put(f"/d/commitlog/{file_name(int(names[-1]) + FILE_SIZE)}", bytes(FILE_SIZE))
    offset = store.cut_points[-1]
    assert cut(store.disk, offset).end_offset == store.end_offset
    assert max(store.disk.files()) == file_name(offset - offset % FILE_SIZE)


def test_end_of_a_file_is_a_cut_point():
    """Then all later files go, and the file before is not touched."""
    store = closed_store(3)
    image = log_bytes(store.disk)
    store.disk.changes.clear()
    assert cut(store.disk, FILE_SIZE).end_offset == store.end_offset
    assert log_bytes(store.disk) == image[:FILE_SIZE]
    removed = [change for change in store.disk.changes if "remove /d/commitlog" in change]
    assert removed == sorted(removed, reverse=True)
    pair = reopened(store.disk, kept(store, FILE_SIZE))
    pair.check_all(TOPICS, (0, 1), KEYS)


# -- what is refused -----------------------------------------------------------------------------


def refuse(disk, offset, error, match, **options):
    before = everything(disk)
    with pytest.raises(error, match=match) as caught:
        cut(disk, offset, **options)
    assert everything(disk) == before
    return caught.value


def test_offsets_inside_records_are_refused():
    """Every offset of the first files that is no record's start."""
    store = closed_store(3)
    starts = {*store.cut_points, FILE_SIZE, 2 * FILE_SIZE}
    for offset in range(1, 2 * FILE_SIZE + 300, 7):
        if offset not in starts:
            error = refuse(store.disk, offset, CutRefusedError, "begins at")
            assert error.physic_offset == offset
            assert error.exit_code == 6


def test_offsets_outside_the_log_are_refused():
    """Below its first byte, and above its end, whether a file is there or not."""
    store = closed_store(3)
    for above in (1, FILE_SIZE, 10**9):
        refuse(store.disk, store.end_offset + above, CutRefusedError, "the log ends before that")
    store.disk.remove(f"/d/commitlog/{file_name(0)}")
    refuse(store.disk, 0, CutRefusedError, f"the log begins at {FILE_SIZE}")
    assert cut(store.disk, FILE_SIZE).physic_offset == FILE_SIZE
    assert sorted(store.disk.files()) == [file_name(FILE_SIZE)]
    refuse(FakeDisk(), 1, CutRefusedError, "the log ends before that")


def test_cut_of_a_message_below_the_confirm_mark_is_an_alarm():
    """A message that the mark divides was never PUT_OK: no alarm, as at the mark."""
    store = closed_store(3)
    offset, message_end = store.cut_points[17:19]
    for mark in (message_end, store.end_offset):
        error = refuse(
            store.disk, offset, BelowConfirmMarkError, "alarm: .* unclean", confirm_mark=mark
        )
        assert (error.physic_offset, error.confirm_mark) == (offset, mark)
        assert f"hastore log cat {error.path} --from-offset {offset}" in error.hint
    assert cut(store.disk, offset, confirm_mark=message_end - 1) is not None
    assert cut(store.disk, store.cut_points[16], confirm_mark=store.cut_points[16]) is not None


def test_filler_below_the_confirm_mark_is_no_alarm():
    """A node that starts again drops the BLANK after its last message."""
    store = closed_store(3)
    gaps = itertools.pairwise(store.puts)
    offset, mark = next(
        (last.next_offset, following.physic_offset)
        for last, following in gaps
        if last.next_offset < following.physic_offset
    )
    assert mark % FILE_SIZE == 0
    assert cut(store.disk, offset, confirm_mark=mark) is not None


def test_cut_without_room_for_the_copy_is_refused():
    """The error says how much room is missing."""
    store = closed_store(3)
    offset = store.cut_points[17]
    store.disk.disk.capacity = store.disk.disk.used_bytes() + 256 * 1024
    error = refuse(store.disk, offset, DiskFullError, "no room .* nothing was changed")
    assert f"free {store.end_offset - offset} bytes" in error.hint
    store.disk.disk.capacity += store.end_offset - offset
    assert cut(store.disk, offset) is not None


def test_cut_with_a_damaged_epoch_file_is_refused():
    """Nobody would know whose bytes they were."""
    store = closed_store(3)
    store.disk.put(EPOCHS, b"1\n77\n1-0\n")
    refuse(store.disk, store.cut_points[17], EpochFileError, "its checksum")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"schema": "x"}', b"[]", b"\0" * 9, b'{"schema": "hastore.cut/2"}']
)
def test_unreadable_intent_keeps_the_store_closed(data):
    """Whatever follows the unknown offset is not the log."""
    store = closed_store(3)
    store.disk.put("/d/cut.json", data)
    with pytest.raises(UnfinishedCutError, match=r"/d/cut\.json"):
        reopened(store.disk, store.puts)
    with pytest.raises(UnfinishedCutError, match=r"/d/cut\.json"):
        cut(store.disk, 0)
    assert store.disk.locked == set()


def test_intent_with_a_wrong_value_is_not_understood():
    """Each field in turn is missing, negative, or of another type."""
    intent = unfinished()[1]
    whole = json.loads(intent)
    assert CutIntent.load(FakeDisk(), "/d") is None
    for path in [(name,) for name in whole] + [("cut", name) for name in whole["cut"]]:
        for wrong in (None, -1, True, 1.5):
            value = json.loads(intent)
            place = value if len(path) == 1 else value["cut"]
            if path[-1] == "unread_from" and wrong is None:
                continue  # all messages were counted
            if path[-1] == "reason":
                del place[path[-1]]
            else:
                place[path[-1]] = wrong
            disk = FakeDisk()
            disk.put("/d/cut.json", json.dumps(value).encode())
            with pytest.raises(UnfinishedCutError, match="cannot be read"):
                CutIntent.load(disk, "/d")


# -- nothing comes back --------------------------------------------------------------------------


def twin_messages(number):
    """Two messages whose records have the same size."""
    return [
        message_of("orders", 0, body * 60, uniq=f"{body.decode()}-{number:03d}", keys=["k"])
        for body in (b"o", b"n")
    ]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_stale_tail_does_not_come_back(count):
    """RocketMQ's hazard_stale_tail: new records end exactly where an old one begins."""
    pair = StorePair()
    for number in range(40):
        pair.put([twin_messages(number)[0]])
    offset = pair.puts[9].next_offset
    disk = stop(pair)
    cut(disk, offset)
    pair = reopened(disk, tuple(pair.puts[:10]))
    for number in range(10, 10 + count):
        pair.put([twin_messages(number)[1]])
    wanted = [put.body for put in pair.puts]
    assert pair.end == offset + count * (pair.puts[1].physic_offset - pair.puts[0].physic_offset)
    for _ in range(2):
        disk = stop(pair)
        assert b"o-010" not in log_bytes(disk)
        pair = reopened(disk, tuple(pair.puts))
        pair.check_all(["orders"], [0], ["k"])
        assert [put.body for put in pair.seen] == wanted
        pair.kill()
        pair.check_all(["orders"], [0], ["k"])


def test_no_byte_of_a_cut_message_is_left_in_the_directory():
    """Except in trimmed/: neither its key's hash in the index, nor its unit, nor its bytes."""
    pair = StorePair()
    for number in range(40):
        pair.put([twin_messages(number)[0]])
    offset = pair.puts[9].next_offset
    last = pair.puts[9]
    disk = stop(pair)
    cut(disk, offset)
    assert not log_bytes(disk)[offset:].strip(b"\0")
    queue = b"".join(data for _, data in sorted(disk.files("/d/consumequeue/orders/0/").items()))
    assert not queue[20 * 10 :].strip(b"\0")
    for data in disk.files("/d/index/").values():
        entries = data[40 + 4 * pair.config.max_hash_slot_num + 20 :]
        for at in range(0, len(entries), 20):
            physic_offset = int.from_bytes(entries[at + 4 : at + 12])
            assert physic_offset <= last.physic_offset


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_masters_queue_offsets_are_counted_again(clean):
    """After the cut each queue goes on at the end of what is left of it."""
    store = closed_store(8, clean=clean)
    offset = store.cut_points[30]
    cut(store.disk, offset)
    pair = reopened(store.disk, kept(store, offset))
    for topic in TOPICS:
        for queue_id in (0, 1):
            pair.put([message_of(topic, queue_id, b"next")])  # compares its queue offset
    pair.check_all(TOPICS, (0, 1), KEYS)


def test_prepared_messages_take_no_queue_offset_after_a_cut():
    """They have no unit, so the units alone decide."""
    pair = StorePair()
    pair.put([message_of("orders", 0, b"1")])
    pair.put([message_of("orders", 0, b"p", sys_flag=TRANSACTION_PREPARED_TYPE)])
    pair.put([message_of("orders", 0, b"2")])
    offset = pair.puts[2].physic_offset
    puts = tuple(pair.puts[:2])
    disk = stop(pair)
    cut(disk, offset)
    pair = reopened(disk, puts)
    pair.put([message_of("orders", 0, b"3")])
    assert pair.puts[-1].queue_offset == 1


def test_records_older_than_those_cut_are_dispatched_after_a_power_cut():
    """Another master wrote them meanwhile: the checkpoint's times must not cover them."""
    config = attrs.evolve(CONFIG, message_index_enable=False)  # it remembers them, too
    pair = StorePair(config)
    pair.put([message_of("orders", 0, b"first")])
    start_ms = pair.clock.ms
    pair.clock.ms += 100_000
    for _ in range(5):
        pair.put([message_of("x", 0, b"cut" * 20)])
    disk = stop(pair)
    cut(disk, pair.puts[0].next_offset, config=config)
    pair = reopened(disk, tuple(pair.puts[:1]), config=config)
    pair.clock.ms = start_ms + 10
    pair.put([message_of("orders", 0, b"after")])
    while pair.end < 3 * FILE_SIZE:
        pair.put([message_of("x", 0, b"after" * 60)])
        pair.clock.ms += 1_000
    pair.flush_log()
    pair.dispatch()
    # The units of one queue reach the disk, those of the other do not.
    for path in [path for path in pair.disk.inodes if "/consumequeue/x/" in path]:
        pair.disk.inodes[path].sync()
    pair.write_checkpoint()
    pair.cut_power(0, 0.0)
    pair.check_all(["orders", "x"], [0], [])


@pytest.mark.parametrize("at_file", [True, False])
def test_checkpoint_goes_back_to_the_last_record_before_the_cut(at_file):
    """By offset and by time, also where that record is in the file before."""
    store = closed_store(3)
    offset = FILE_SIZE if at_file else store.cut_points[20]
    last = kept(store, offset)[-1]
    before = StoreCheckpoint.open(store.disk, "/d")
    cut(store.disk, offset)
    after = StoreCheckpoint.open(store.disk, "/d")
    assert before.flushed_offset > after.flushed_offset == offset
    assert before.physic_msg_timestamp > after.physic_msg_timestamp == last.store_ms
    assert before.logics_msg_timestamp > after.logics_msg_timestamp == last.store_ms
    assert after.index_msg_timestamp <= last.store_ms


def test_index_entries_far_after_the_cut_are_zeroed():
    """A power cut may have left only them: the entries between are zeros already."""
    config = attrs.evolve(CONFIG, max_index_num=400_000)
    pair = StorePair(config)
    for _ in range(5):
        pair.put([message_of("x", 0, b"body", keys=["k"])])
    disk = stop(pair)
    (path,) = (path for path in disk.inodes if "/index/" in path)
    layout = IndexLayout(config.max_hash_slot_num, config.max_index_num)
    disk.overwrite(path, layout.entry_position(300_000), b"\1" * 20)
    cut(disk, pair.puts[2].physic_offset, config=config)
    left = bytes(disk.inodes[path].durable)
    assert not left[layout.entry_position(3) :].strip(b"\0")


def test_two_cuts_at_one_offset_in_one_millisecond_keep_both():
    """The log was filled again in between, with other bytes."""
    pair = StorePair()
    for number in range(5):
        pair.put([twin_messages(number)[0]])
    offset = pair.puts[2].physic_offset
    puts = tuple(pair.puts[:2])
    for letter in (b"o", b"n"):
        disk = stop(pair)
        image = log_bytes(disk)
        done = cut(disk, offset)
        assert (
            b"".join(disk.inodes[f"/d/{path}"].seen() for path in done.saved_paths)
            == (image[offset : done.end_offset])
        )
        assert letter * 60 in image[offset:]
        pair = reopened(disk, puts)
        for number in range(3):
            pair.put([twin_messages(number)[1]])
    assert sum(name.startswith("cut-") for name in disk.files("/d/trimmed/")) == 2


# -- the next opening ----------------------------------------------------------------------------


def unfinished(seed=3, *, clean=True):
    """A store whose cut was killed right after the intent, the intent, and the cut's end state."""
    store = closed_store(seed, clean=clean)
    offset = store.cut_points[20]
    whole = store.disk.kill()
    intents = []
    whole.after(
        "write_file", lambda op: intents.append(whole.inodes[op.path].seen()), path="/d/cut.json"
    )
    done = cut(whole, offset)
    disk = store.disk.kill()
    for path, data in whole.files("/d/trimmed/").items():
        disk.put(f"/d/trimmed/{path}", data)
    disk.put("/d/cut.json", intents[0])
    return disk, intents[0], store, done, contents(whole)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_next_opening_finishes_the_cut(clean):
    """Before it reads anything, and the store says so."""
    disk, _, store, done, wanted = unfinished(clean=clean)
    pair = reopened(disk, kept(store, done.physic_offset))
    assert pair.store.completed_cut == done
    assert "/d/cut.json" not in disk.inodes
    pair.check_all(TOPICS, (0, 1), KEYS)
    disk = unfinished(clean=clean)[0]
    assert complete(disk) == done
    assert contents(disk) == wanted
    assert complete(disk) is None
    assert reopened(disk, kept(store, done.physic_offset)).store.completed_cut is None


def test_log_that_is_opened_alone_is_cut_first():
    """``CommitLog.open`` takes the lock itself, so it finishes the cut itself."""
    disk, _, _, done, _ = unfinished()
    log = open_log(fake_env(disk))
    assert log.max_offset == done.physic_offset
    assert "/d/cut.json" not in disk.inodes


def test_another_configuration_finishes_the_same_cut():
    """The intent holds the sizes with which queues and index were written."""
    disk, _, _, _, wanted = unfinished()
    log = open_log(fake_env(disk), max_hash_slot_num=9, max_index_num=30)
    log.close(clean=False)
    assert {p: d for p, d in contents(disk).items() if "/index/" in p} == {
        p: d for p, d in wanted.items() if "/index/" in p
    }


def test_next_cut_finishes_the_one_before():
    """It then has nothing to do at the same offset, and returns what was cut."""
    disk, _, _, done, wanted = unfinished()
    assert cut(disk, done.physic_offset) == done
    assert contents(disk) == wanted
    disk, _, store, done, _ = unfinished()
    earlier = store.cut_points[10]
    assert cut(disk, earlier).physic_offset == earlier
    assert log_bytes(disk).rstrip(b"\0") == log_bytes(store.disk)[:earlier].rstrip(b"\0")


def test_index_that_a_full_disk_takes_is_built_again():
    """Cutting needs no room, but if a mark finds none, a whole index file goes instead."""
    store = closed_store(3)
    offset = store.cut_points[40]
    full = DiskFullError("no space to write", path="/d/index")
    store.disk.fail("pwrite", full, path="/d/index", times=1)
    cut(store.disk, offset)
    pair = reopened(store.disk, kept(store, offset))
    pair.check_all(TOPICS, (0, 1), KEYS)


def test_index_that_a_full_disk_takes_at_an_opening_is_built_again():
    """From the log's start: this opening counts as one after an unclean stop."""
    config = attrs.evolve(CONFIG, max_index_num=100)
    pair = StorePair(config)
    for _ in range(80):
        pair.put([message_of("x", 0, b"body" * 10, keys=["k"])])
        pair.clock.ms += 10_000
    offset = pair.puts[70].physic_offset
    disk = stop(pair)
    intent = DyingDisk.of(disk)
    cut(intent, offset, config=config)
    dies_at = next(n for n, name in enumerate(intent.operations) if "cut.json" in name) + 1
    dying = DyingDisk.of(disk, dies_at)
    with pytest.raises(Killed):
        cut(dying, offset, config=config)
    disk = dying.kill()
    full = DiskFullError("no space to write", path="/d/index")
    disk.fail("pwrite", full, path="/d/index", times=1)
    pair = reopened(disk, tuple(pair.puts[:70]), config=config)
    assert disk.failures == 1
    pair.check_all(["x"], [0], ["k"])


def test_queues_that_a_killed_rebuild_moved_away_are_cut_too():
    """They are put back first, as at an opening."""
    store = closed_store(3)
    offset = store.cut_points[20]
    whole = store.disk.kill()
    cut(whole, offset)
    store.disk.rename("/d/consumequeue", "/d/consumequeue.old-1700000000000")
    cut(store.disk, offset)
    assert contents(store.disk) == contents(whole)


def test_message_keys_survive():
    """The key of a message before the cut is found after it, one of a message after it is not."""
    pair = StorePair()
    for number in range(30):
        pair.put([Message("x", b"b" * 100, properties={PROPERTY_UNIQ_KEY: f"u{number}"})])
    disk = stop(pair)
    cut(disk, pair.puts[20].physic_offset)
    pair = reopened(disk, tuple(pair.puts[:20]))
    assert len(pair.store.query_message("x", "u19")) == 1
    assert pair.store.query_message("x", "u20") == []

"""Units that name no record of their queue, as RocketMQ's slaves leave them: a start cuts them."""

import errno
import json
import random
import struct
import subprocess

import pytest

from hastore.env.real import real_env
from hastore.errors import DiskError
from hastore.store.queue import stale_units
from hastore.store.queue.unit import BLANK_UNIT, UNIT_SIZE
from hastore.store.queue.unit_check import UnitCheck
from hastore.store.record import message_codec
from hastore.store.record.java_hash import tags_code
from hastore.store.record.layout import TRANSACTION_COMMIT_TYPE, TRANSACTION_TYPE_MASK
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from hastore.store.tools.log_walker import LogWalker
from tests.store.whole_store import config_of, dispatch, open_store
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.env.scripted_disk import ScriptedDisk
from tests.support.store.open_log import FILE_SIZE, append, flush
from tests.support.store.store_reads import get_message

QUEUE = "/d/consumequeue/orders/0/00000000000000000000"
both_roles = pytest.mark.parametrize("master", [False, True], ids=["slave", "master"])


def config(**changes):
    return config_of("/d", mapped_file_size=FILE_SIZE, append_prop_crc=False, **changes)


async def stopped(disk, count=6, **fields):
    """Write messages into ``orders`` and ``other`` by turns, stop cleanly; return the offsets."""
    env = fake_env(disk)
    store = open_store(env, config())
    places = []
    for number in range(count):
        places.append(append(store.commit_log, topic="orders", body=b"%d" % number, **fields))
        append(store.commit_log, topic="other", body=b"other %d" % number, **fields)
    await stop(env, store)
    return places


async def stop(env, store):
    service = await dispatch(env, store)
    flush(store.commit_log)
    store.redispatched_to = service.reput_offset
    store.checkpoint.flushed_offset = store.commit_log.flushed_offset
    store.close(clean=True)


def units(disk, count):
    data = disk.read_file(QUEUE)
    return [struct.unpack_from(">qiq", data, n * UNIT_SIZE) for n in range(count)]


def write_unit(disk, number, physic_offset, size, *, queue=QUEUE, tags_code=0):
    disk_file = disk.open_sparse_file(queue, 1_000)
    disk_file.pwrite(struct.pack(">qiq", physic_offset, size, tags_code), number * UNIT_SIZE)
    disk_file.close()


async def stopped_long_ago(disk):
    """Write messages into ``orders`` and ``other``, and later three files of others; stop cleanly.

    The checkpoint says that all of them are in the queues and in the index.
    """
    clock = FakeClock()
    env = fake_env(disk, clock)
    store = open_store(env, config())
    for topic, size in [("orders", 1), ("other", 1)] * 6 + [("new", 400)] * 100:
        clock.ms += 2_000
        append(store.commit_log, topic=topic, body=b"x" * size, properties={"KEYS": "k"})
    checkpoint = store.checkpoint
    checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = clock.ms
    checkpoint.index_msg_timestamp = clock.ms
    await stop(env, store)


def read_all(store):
    """Return the queue offsets of all messages that a consumer of every queue reads, by queue."""
    found = {}
    for queue in store.consume_queues:
        offset, seen = queue.min_offset, []
        while offset < queue.max_offset:
            result = get_message(store, queue.topic, queue.queue_id, offset)
            for place in result.ranges:
                message = message_codec.decode(store.commit_log.read(*place))
                assert (message.topic, message.queue_id) == (queue.topic, queue.queue_id)
                seen.append(message.queue_offset)
            offset = result.next_begin_offset
        found[queue.topic, queue.queue_id] = seen
    return found


def in_log(store, env, path):
    """Return the queue offsets of all messages of the log, by queue."""
    found = {}
    for offset, size in records(env.disk, path):
        message = message_codec.decode(store.commit_log.read(offset, size))
        if message.sys_flag & TRANSACTION_TYPE_MASK not in {0, TRANSACTION_COMMIT_TYPE}:
            continue
        found.setdefault((message.topic, message.queue_id), []).append(message.queue_offset)
    return {queue: sorted(offsets) for queue, offsets in found.items()}


def records(disk, path):
    return [
        (offset, check.size)
        for offset, check in LogWalker(disk, find_log(disk, path)).walk()
        if check.kind is RecordKind.MESSAGE
    ]


def unpacked(archive, to):
    to.mkdir()
    subprocess.run(["tar", "-xSJf", archive, "-C", to], check=True)
    (root,) = to.iterdir()
    return root


def damage(path, config):
    disk = real_env().disk
    log = find_log(disk, str(path))
    found = [
        *verify_log(disk, log).findings,
        *verify_derived(disk, str(path), log, config).findings,
    ]
    return [(one.kind, one.physic_offset) for one in found if one.severity.value == "damage"]


# -- RocketMQ's own directories ------------------------------------------------------------------


@both_roles
@pytest.mark.parametrize("name", ["failover", "failover_crash"])
async def test_a_slave_of_rocketmq_that_has_cut_its_log(recorded_golden, tmp_path, name, master):
    """Two stale units of seven go; a consumer reads each message once, and verify is clean."""
    archive = recorded_golden / "autoswitch" / name / "oldmaster_after.tar.xz"
    root = unpacked(archive, tmp_path / "s")
    golden = config_of(root)
    found = [kind for kind, _ in damage(root, golden)]
    assert found.count("unit-dangling") == 2
    env = real_env()
    store = open_store(env, golden, master=master)
    await stop(env, store)
    assert damage(root, golden) == []
    (saved,) = (root / "trimmed").glob("units-*.json")
    assert [(row["topic"], row["queueOffset"]) for row in json.loads(saved.read_text())] == [
        ("T1", 6),
        ("T1", 5),
    ]
    store = open_store(env, golden, master=master)
    assert read_all(store) == in_log(store, env, str(root))
    store.close(clean=False)
    assert len(list((root / "trimmed").iterdir())) == 1


async def test_a_slave_of_rocketmq_that_was_ahead(recorded_golden, tmp_path):
    """Its log ends at 3005 with old bytes behind; one unit names another queue's record there."""
    archive = recorded_golden / "autoswitch" / "slave_ahead" / "slave.tar.xz"
    root = unpacked(archive, tmp_path / "s")
    golden, env = config_of(root), real_env()
    (root / "abort").touch()  # else the start refuses such a log
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(3005)
        file.truncate(65_536)
    store = open_store(env, golden, master=False)
    await stop(env, store)
    assert damage(root, golden) == []
    store = open_store(env, golden, master=False)
    assert (
        read_all(store) == in_log(store, env, str(root)) == {("E", 0): [0, 1, 2, 3], ("F", 0): [0]}
    )
    store.close(clean=False)


# -- single rules --------------------------------------------------------------------------------


async def test_a_record_whose_unit_was_dropped_gets_it():
    """RocketMQ keeps the stale unit of an index and drops the unit of the new record."""
    disk = FakeDisk()
    await stopped(disk)
    before = units(disk, 6)
    for number in (2, 5):
        write_unit(disk, number, 17, 100)
    env = fake_env(disk)
    store = open_store(env, config())
    assert append(store.commit_log, topic="orders").queue_offset == 6
    await stop(env, store)
    assert units(disk, 6) == before


async def test_a_stale_unit_with_good_ones_behind_it_becomes_a_blank():
    """Where the log has no record of that index; the good units keep their places."""
    disk = FakeDisk()
    places = await stopped(disk)
    log_file = disk.open_file(f"/d/commitlog/{0:020d}", writable=True)
    log_file.pwrite(struct.pack(">i", 1), places[2].physic_offset + 12)  # its queue id
    log_file.close()
    env = fake_env(disk)
    await stop(env, open_store(env, config()))
    assert units(disk, 3)[2] == BLANK_UNIT
    store = open_store(fake_env(disk), config())
    assert read_all(store)["orders", 0] == [0, 1, 3, 4, 5]


async def test_the_next_message_gets_the_first_index_that_was_cut():
    """Stale units count as no messages; the queue continues without a gap."""
    disk = FakeDisk()
    places = await stopped(disk)
    for number in (6, 7):
        write_unit(disk, number, places[3].physic_offset, 20)
    store = open_store(fake_env(disk), config())
    assert store.max_offset_in_queue("orders", 0) == 6
    assert append(store.commit_log, topic="orders").queue_offset == 6


async def test_a_stale_unit_that_differs_in_the_tags_code_only():
    """Where all messages have one size: a consumer of the new record's tag would never get it."""
    disk = FakeDisk()
    await stopped(disk, properties={"TAGS": "TagB"})
    before = units(disk, 6)
    for number in (3, 5):
        write_unit(disk, number, *before[number][:2], tags_code=tags_code("TagC"))
    env = fake_env(disk)
    await stop(env, open_store(env, config()))
    assert units(disk, 6) == before


async def test_the_unit_of_a_damaged_record_with_other_tags_stays():
    """Only a checksum says that the record is damaged."""
    disk = FakeDisk()
    await stopped_long_ago(disk)
    place, size, _ = units(disk, 6)[5]
    write_unit(disk, 5, place, size, tags_code=tags_code("TagC"))
    before = units(disk, 6)
    path = f"/d/commitlog/{0:020d}"
    log_file = disk.open_file(path, writable=True)
    log_file.pwrite(b"y", disk.read_file(path).index(b"x", place))  # its body
    log_file.close()
    assert open_store(fake_env(disk), config()).consume_queues.damaged == []
    assert units(disk, 6) == before


async def test_no_queue_offset_is_given_twice_if_the_record_lies_in_an_old_file():
    """The record of a cut unit may lie before the files that a start reads."""
    disk = FakeDisk()
    await stopped(disk)
    env = fake_env(disk)
    store = open_store(env, config())
    for _ in range(60):
        append(store.commit_log, topic="new", body=b"x" * 400)
    await stop(env, store)
    for number in (4, 5):
        write_unit(disk, number, 17, 100)
    store = open_store(fake_env(disk), config())
    assert append(store.commit_log, topic="orders").queue_offset == 6


@both_roles
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no-index"])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power-cut"])
async def test_a_start_that_is_killed_after_it_cut_stale_units(master, indexed, power):
    """At any disk operation up to the dispatch's end: the next one finds the records of the cut."""
    disk = FakeDisk()
    await stopped_long_ago(disk)
    before, keys = units(disk, 6), 12 if indexed else 0
    for number in (1, 4, 5):  # the first has good units behind it
        write_unit(disk, number, 17, 100)
    write_unit(disk, 5, 17, 100, queue=QUEUE.replace("orders", "other"))
    settings = config(message_index_enable=indexed)
    rng, dies_at, is_killed = random.Random(7), 0, True
    while is_killed:
        dying = DyingDisk.of(disk, dies_at)
        is_killed, dies_at = False, dies_at + 1
        env = fake_env(dying)
        try:
            await dispatch(env, open_store(env, settings, master=master))
        except Killed:
            is_killed = True
        keep = rng.random()
        after = dying.cut_power(lambda keep=keep: rng.random() < keep) if power else dying
        env = fake_env(after.kill())
        store = open_store(env, settings, master=master)
        if master:
            for topic in ("orders", "other"):
                assert append(store.commit_log, topic=topic).queue_offset == 6
        await dispatch(env, store)
        assert units(env.disk, 6) == before
        assert read_all(store) == in_log(store, env, "/d")
        found = [len(store.query_message(topic, "k")) for topic in ("orders", "other")]
        assert sum(found) == keys
    assert dies_at > 10


async def test_the_unit_of_a_damaged_record_stays():
    """It is evidence for a repair, which the start of a node must not remove."""
    disk = FakeDisk()
    places = await stopped(disk)
    env = fake_env(disk)
    store = open_store(env, config())
    for _ in range(60):
        append(store.commit_log, topic="new", body=b"x" * 400)
    await stop(env, store)
    before = units(disk, 6)
    log_file = disk.open_file(f"/d/commitlog/{0:020d}", writable=True)
    log_file.pwrite(b"damage", places[5].physic_offset)
    log_file.close()
    store = open_store(fake_env(disk), config())
    assert store.consume_queues.damaged == []
    assert units(disk, 6) == before


@both_roles
async def test_a_start_that_is_killed_after_it_dropped_an_unreadable_queue(master):
    """At any disk operation: the next one has all of the queue's records."""
    disk = FakeDisk()
    await stopped_long_ago(disk)
    before, dies_at, is_killed = units(disk, 6), 0, True
    while is_killed:
        dying = DyingDisk.of(disk, dies_at)
        is_killed, dies_at = False, dies_at + 1
        dying.fail("pread", _bad_sector, path=QUEUE)
        try:
            open_store(fake_env(dying), config(message_index_enable=False), master=master)
        except Killed:
            is_killed = True
        env = fake_env(dying.kill())
        store = open_store(env, config(message_index_enable=False), master=master)
        if master:
            assert append(store.commit_log, topic="orders").queue_offset == 6
        await dispatch(env, store)
        assert units(env.disk, 6) == before
    assert dies_at > 5


@both_roles
@pytest.mark.parametrize("others_stale", [False, True], ids=["none-stale", "others-stale"])
async def test_units_of_an_old_file_that_cannot_be_read_stay(master, others_stale):
    """One bad sector under the last units of an idle queue must not keep a node down."""
    disk = FakeDisk()
    await stopped_long_ago(disk)
    before = units(disk, 6)
    if others_stale:
        new = QUEUE.replace("orders", "new").replace(f"{0:020d}", f"{1_000:020d}")
        write_unit(disk, 49, 3 * FILE_SIZE, 100, queue=new)
    failing = ScriptedDisk(disk)
    failing.fail("pread", _bad_sector, path=f"/d/commitlog/{0:020d}")
    store = open_store(fake_env(failing), config(), master=master)
    assert len(store.consume_queues.damaged) == others_stale
    assert units(disk, 6) == before


def _bad_sector(path):
    error = DiskError(f"cannot read {path}", path=path)
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    return error


async def test_units_below_the_logs_begin_and_blanks_stay():
    """Their records are gone, which is no fault of the queue."""
    disk = FakeDisk()
    await stopped(disk, count=40)
    before = disk.read_file(QUEUE)
    del disk.inodes[f"/d/commitlog/{0:020d}"]
    store = open_store(fake_env(disk), config())
    assert store.consume_queues.damaged == []
    assert disk.read_file(QUEUE) == before


async def test_a_start_checks_few_units_of_many_queues(monkeypatch):
    """A start stays fast on large queues: only the last units of each are looked at."""
    disk = FakeDisk()
    await stopped(disk, count=45)
    monkeypatch.setattr(stale_units, "CHECKS_MAX", 6)
    checked = []
    names_record = UnitCheck.names_record

    def spy(self, unit, topic, queue_id, queue_offset):
        checked.append((topic, queue_offset))
        return names_record(self, unit, topic, queue_id, queue_offset)

    monkeypatch.setattr(UnitCheck, "names_record", spy)
    open_store(fake_env(disk), config())
    assert sorted(checked) == [
        (topic, number) for topic in (b"orders", b"other") for number in (42, 43, 44)
    ]

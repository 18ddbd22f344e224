"""RocketMQ's own stores, with consume queues and checkpoints, opened by hastore's recovery."""

import json

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import LogDamagedError
from hastore.store.commit_log import CommitLog
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.store_lock import StoreLock
from tests.support.store.recovering import Recovered, messages

both_roles = pytest.mark.parametrize("master", [True, False], ids=["master", "slave"])
CRASHED = ("crashed", "crashed_torn")


def recover(path, *, master=True):
    env = real_env()
    lock = StoreLock.take(env.disk, str(path))
    checkpoint = StoreCheckpoint.open(env.disk, str(path))
    queues = ConsumeQueueStore.load(env.disk, str(path), 1_000)
    queues.recover(last_exit_ok=lock.last_exit_ok)
    try:
        log = CommitLog.open(
            env,
            StoreConfig(data_dir=str(path)),
            store_host=("127.0.0.1", 10_911),
            needs_queue_offsets=master,
            lock=lock,
            checkpoint=checkpoint,
            consume_queues=queues,
        )
    except BaseException:
        queues.close()
        lock.release(clean=False)
        raise
    return Recovered(env.disk, None, log, queues, checkpoint, log.load_report.redispatch_from)


def manifest(golden, name):
    suffix = "recovered.manifest" if name.startswith("crashed") else "manifest"
    return json.loads((golden / f"{name}.{suffix}.json").read_text())


def stored(log):
    return [(offset, size, m.topic, m.queue_id, m.queue_offset) for offset, size, m in
            messages(log, 0)]  # fmt: skip


def rows_of(wanted):
    return [
        (r["physicalOffset"], r["totalSize"], r["topic"], r["queueId"], r["queueOffset"])
        for r in wanted["records"]
        if r["type"] == "MSG"
    ]


def check_queue_ends(store, wanted, *, master):
    """Check that each queue ends where RocketMQ's does, and that a master continues there."""
    ends = {(q["topic"], q["queueId"]): q["maxOffset"] for q in wanted["queues"] if q["maxOffset"]}
    assert {(q.topic, q.queue_id): q.max_offset for q in store.queues} == ends
    if master:
        topics = store.log._topics
        assert {key: topics[key[0]].next_offsets[key[1]] for key in ends} == ends


@both_roles
@pytest.mark.parametrize("name", CRASHED)
def test_crashed_store_recovers_to_rocketmqs_messages(golden, golden_copy, name, master):
    """Messages, log end and queues equal those of RocketMQ's own recovery."""
    wanted = manifest(golden, name)
    store = recover(golden_copy(name), master=master)
    assert stored(store.log) == rows_of(wanted)
    assert store.log.max_offset == wanted["maxPhyOffset"]
    check_queue_ends(store, wanted, master=master)
    store.close(clean=False)


@both_roles
def test_record_with_torn_properties_is_trimmed(golden, golden_copy, master):
    """RocketMQ keeps that record with damaged properties; hastore drops it and its unit."""
    wanted = rows_of(manifest(golden, "crashed_torn_props"))
    store = recover(golden_copy("crashed_torn_props"), master=master)
    assert stored(store.log) == wanted[:-1]
    assert store.report.trimmed.physic_offset == wanted[-1][0]
    assert store.queues.max_physic_offset <= wanted[-1][0]
    store.close(clean=False)


@both_roles
@pytest.mark.parametrize("name", ["clean", "propcrc", "replica", "replica_master"])
def test_clean_store_opens_unchanged(golden, golden_copy, name, master):
    """All messages are there, nothing is trimmed, and no byte of log or queues changes."""
    path = golden_copy(name)
    wanted = manifest(golden, name)
    before = {file: file.read_bytes() for file in path.glob("co[mn]*/**/*") if file.is_file()}
    store = recover(path, master=master)
    assert stored(store.log) == rows_of(wanted)
    assert store.log.max_offset == wanted["maxPhyOffset"]
    assert (store.report.trimmed, store.report.written_again) == (None, 0)
    check_queue_ends(store, wanted, master=master)
    store.close(clean=False)
    assert {file: file.read_bytes() for file in before} == before


def test_crashed_store_is_walked_from_its_checkpoint(golden, golden_copy):
    """Files are skipped if the next one's first record was flushed and dispatched long before."""
    path = golden_copy("crashed")
    checkpoint = StoreCheckpoint.open(real_env().disk, str(path))
    records = [r for r in manifest(golden, "crashed")["records"] if r["type"] == "MSG"]
    settled = [
        r["physicalOffset"]
        for r in records
        if r["physicalOffset"] % 65_536 == 0 and r["storeTimestamp"] <= checkpoint.min_timestamp
    ]
    store = recover(path)
    start = max(settled, default=0)
    young = next(
        r["physicalOffset"] for r in records if r["storeTimestamp"] > checkpoint.min_timestamp
    )
    assert store.report.records == sum(r["physicalOffset"] >= start for r in records)
    assert start <= store.report.redispatch_from <= young
    assert store.report.written_again >= store.log.max_offset - young
    store.close(clean=False)


@pytest.mark.parametrize("name", CRASHED)
def test_damage_that_rocketmq_had_flushed_is_refused(golden, golden_copy, name):
    """The checkpoint's physic time covers the damaged record, and intact records follow it."""
    path = golden_copy(name)
    checkpoint = StoreCheckpoint.open(real_env().disk, str(path))
    records = [r for r in manifest(golden, name)["records"] if r["type"] == "MSG"]
    flushed = [r for r in records if r["storeTimestamp"] < checkpoint.physic_msg_timestamp]
    last = flushed[-2]["physicalOffset"]
    file = path / "commitlog" / f"{last - last % 65_536:020d}"
    image = bytearray(file.read_bytes())
    image[last % 65_536 + 100] ^= 0xFF
    file.write_bytes(image)
    with pytest.raises(LogDamagedError) as caught:
        recover(path)
    assert caught.value.physic_offset == last
    assert not (path / "trimmed").exists()


@pytest.mark.parametrize("name", CRASHED)
def test_second_start_of_a_recovered_store_changes_nothing(golden, golden_copy, name):
    """After a kill, the start reads the flushed offset from hastore's own checkpoint."""
    path = golden_copy(name)
    first = recover(path)
    end = first.log.max_offset
    first.close(clean=False)
    again = recover(path)
    assert again.log.max_offset == end
    assert (again.report.written_again, again.report.trimmed) == (0, None)
    assert again.checkpoint.is_own
    again.close(clean=False)

"""Recovery that is killed, loses power, or meets disk errors: the next one always completes."""

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import DiskError, DiskFullError
from hastore.message import Message
from tests.support.env.crash_points import DyingDisk, Killed, RefusingDisk
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock
from tests.support.store.open_log import append
from tests.support.store.recovering import FILE_SIZE, log_name, messages, poke, recover

both_roles = pytest.mark.parametrize("master", [True, False], ids=["master", "slave"])
BODY = b"x" * 200


def with_hole(*, flushed=3):
    """A crashed disk with a hole above the durable boundary and intact records after it.

    Return the disk, the offset of the damaged record, and all bytes of the log.
    """
    disk = FakeDisk()
    store = recover(disk)
    offsets = []
    while store.log.max_offset < 3 * FILE_SIZE:
        offsets.append(store.append(BODY, topic=f"t{len(offsets) % 2}").physic_offset)
        if len(offsets) == flushed:
            store.dispatch()
            store.flush_log()
            store.flush_queues()
    store.dispatch()
    disk = disk.kill()
    hole = offsets[flushed + 1]
    poke(disk, hole + 20, bytes(40))
    image = b"".join(data for _, data in sorted(disk.files().items()))
    return disk, hole, image


def cut_in_a_record():
    """A crashed slave's disk whose flushed offset lies inside its last record."""
    source = FakeDisk()
    store = recover(source)
    for _ in range(4):
        end = store.append(BODY).physic_offset
    disk = FakeDisk()
    slave = recover(disk, master=False)
    slave.append_data(0, store.all_bytes()[: end + 100])
    slave.flush_log()
    image = b"".join(data for _, data in sorted(disk.files().items()))
    return disk.kill(), end, image


SCENES = {"hole": with_hole, "cut": cut_in_a_record}
scenes = pytest.mark.parametrize("scene", SCENES)


def assert_recovered(disk, end, image, *, master):
    """Check that the log ends at ``end`` and is unchanged, and that all trimmed bytes are kept."""
    store = recover(disk, master=master)
    assert store.log.max_offset == store.checkpoint.flushed_offset == end
    log = b"".join(data for _, data in sorted(disk.files().items()))
    assert log[:end] == image[:end]
    assert not log[end:].strip(b"\0")
    kept = bytearray(len(image))
    for name, data in disk.files("/d/trimmed/").items():
        start = int(name[:20])
        for index, byte in enumerate(data):
            if byte:
                kept[start + index] = byte
    assert kept[end:] == image[end:]
    for units in store.queue_contents().values():
        assert all(offset < end for offset in units.values())
    store.close()
    assert recover(disk.kill(), master=master).report.trimmed is None


def operations_of(scene, *, master):
    disk, _, _ = SCENES[scene]()
    whole = DyingDisk.of(disk)
    recover(whole, master=master)
    return whole.operations


@scenes
@both_roles
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power-cut"])
def test_next_recovery_completes_one_killed_at_any_operation(scene, master, power):
    """The kill comes between two disk operations, or in the middle of a write."""
    disk, end, image = SCENES[scene]()
    count = len(operations_of(scene, master=master))
    assert count > 8
    rng = random.Random(count)
    for dies_at in range(count):
        for bytes_written in (0, 1, 700):
            dying = DyingDisk.of(disk, dies_at, bytes_written)
            with pytest.raises(Killed):
                recover(dying, master=master)
            keep = rng.random()
            after = dying.cut_power(lambda keep=keep: rng.random() < keep) if power else dying
            assert_recovered(after.kill(), end, image, master=master)


@both_roles
def test_recovery_completes_after_repeated_kills(master):
    """Each start is killed one operation later than the one before."""
    disk, end, image = with_hole()
    rng = random.Random(5)
    for dies_at in range(len(operations_of("hole", master=master))):
        dying = DyingDisk.of(disk, dies_at, rng.randrange(3_000))
        with contextlib.suppress(Killed):
            recover(dying, master=master)
        disk = dying.cut_power(lambda: rng.random() < 0.5) if dies_at % 3 else dying.kill()
    assert_recovered(disk, end, image, master=master)


@scenes
@both_roles
@pytest.mark.parametrize("error", [DiskError, DiskFullError])
def test_disk_error_in_any_operation_loses_nothing(scene, master, error):
    """The start fails with the disk's error and releases the lock, and the next one succeeds."""
    disk, end, image = SCENES[scene]()
    for refused in range(len(operations_of(scene, master=master))):
        trying = RefusingDisk.of(disk, refused, 100)
        trying.error = error
        refusal = None
        try:
            recover(trying, master=master)
        except error as caught:
            refusal = str(caught)
        if refusal is None:  # on a full disk, the checkpoint is written later
            assert (error, "/checkpoint" in trying.operations[refused]) == (DiskFullError, True)
        else:
            assert "refused" in refusal
            assert trying.locked == set()
        assert_recovered(trying.kill(), end, image, master=master)


# -- many crashes --------------------------------------------------------------------------------


@st.composite
def histories(draw):
    steps = st.sampled_from(["append", "append", "append", "flush", "queues", "dispatch", "batch"])
    return draw(
        st.lists(
            st.tuples(
                st.lists(steps, max_size=25),
                st.sampled_from(["kill", "power", "clean"]),
                st.integers(0, 2**32),
            ),
            min_size=1,
            max_size=4,
        )
    )


def run_steps(store, steps, rng, bodies):
    """Run the steps on a store, and return how many messages they flushed."""
    flushed = 0
    for step in steps:
        if step == "append":
            bodies.append(b"%d" % rng.randrange(10**6) * rng.randrange(1, 60))
            store.append(bodies[-1], topic=f"t{rng.randrange(3)}")
            store.clock.ms += rng.choice([0, 1, 5_000])
        elif step == "batch":
            batch = [Message("t0", b"%d" % rng.randrange(10**6)) for _ in range(3)]
            append(store.log, batch)
            bodies += [message.body for message in batch]
        elif step == "flush":
            store.flush_log(checkpoint=rng.random() < 0.7)
            flushed = len(bodies)
        else:
            store.dispatch()
            if step == "queues":
                store.flush_queues(checkpoint=rng.random() < 0.7)
    return flushed


@given(histories())
def test_random_stops_and_crashes_lose_no_flushed_message(history):
    """The model is a list of bodies.

    The store may lose only bodies at the list's end that were not flushed. After dispatch has
    caught up, the queues hold exactly the log's messages.
    """
    disk = FakeDisk()
    bodies = []
    clock = FakeClock()
    for steps, end, seed in history:
        rng = random.Random(seed)
        store = recover(disk, clock=clock)
        flushed = max(len(bodies), run_steps(store, steps, rng, bodies))
        if end == "power":
            disk = disk.cut_power(lambda rng=rng: rng.random() < 0.5)
        else:
            if end == "clean":
                store.close()
            disk, flushed = disk.kill(), len(bodies)
        store = recover(disk.kill(), clock=clock)
        found = store.bodies()
        assert found == bodies[: len(found)]
        assert len(found) >= flushed
        store.dispatch()
        contents = store.queue_contents()
        in_queues = sorted(offset for units in contents.values() for offset in units.values())
        assert in_queues == [offset for offset, _, _ in messages(store.log, 0)]
        for (topic, queue_id), units in contents.items():
            assert sorted(units) == list(range(len(units)))
            assert store.append(topic=topic, queue_id=queue_id).queue_offset == len(units)
        recover(disk, clock=clock)
        disk, bodies = disk.kill(), found


def test_stale_record_never_reappears():
    """A shorter record overwrites trimmed ones, and ends where one of them began."""
    disk, hole, _ = with_hole()
    store = recover(disk)
    size = store.append(b"y" * 200, topic="t0").next_offset - hole
    store.flush_log()
    for _ in range(3):
        disk = disk.cut_power()
        store = recover(disk)
        assert store.log.max_offset == hole + size
        assert store.bodies()[-1] == b"y" * 200
    assert len(store.bodies()) == 5
    assert disk.inodes[log_name(0)].seen()[hole + size :] == bytes(FILE_SIZE - hole - size)

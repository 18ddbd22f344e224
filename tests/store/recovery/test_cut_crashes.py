"""A cut that is killed, loses power, or meets disk errors: the next opening ends at the same bytes.

A cut is all or nothing: without an intent the store is as it was, with one the next opening ends
where an uninterrupted cut ends.
"""

import contextlib
import functools
import itertools
import random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.store.epoch_file import EPOCH_FILE
from tests.support.env.crash_points import DyingDisk, Killed, RefusingDisk
from tests.support.env.fake_disk import FakeDisk
from tests.support.store.cutting import (
    KEYS,
    TOPICS,
    assert_saved,
    closed_store,
    complete,
    contents,
    cut,
    log_bytes,
    reopened,
)

both_stops = pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])


@attrs.frozen(kw_only=True)
class Scene:
    """A store, where it is cut, its contents before and after, and what an opening makes of them.

    ``opened`` is empty if the store before was killed: then each opening finds another page cache.
    """

    store: object
    offset: int
    end_offset: int
    image: bytes
    before: dict
    after: dict
    opened: dict


@functools.cache
def scene(seed=3, *, clean=True):
    store = closed_store(seed, clean=clean)
    offset = store.cut_points[len(store.cut_points) * 2 // 5]
    disk = store.disk.kill()
    done = cut(disk, offset)
    return Scene(
        store=store,
        offset=offset,
        end_offset=done.end_offset,
        image=log_bytes(store.disk),
        before=contents(store.disk),
        after=contents(disk),
        opened=opened(disk, store, offset),
    )


def opened(disk, store, offset):
    """Open and close a store, and return its contents; the model checks what can be read."""
    pair = reopened(disk.kill(), tuple(put for put in store.puts if put.next_offset <= offset))
    pair.check_all(TOPICS, (0, 1), KEYS)
    pair.flush_queues()
    pair.flush_log()
    pair.write_checkpoint()
    pair.store.close(clean=True)
    return contents(pair.disk)


def durable(disk):
    """The contents that a power cut leaves at the worst."""
    return contents(disk, lambda inode: bytes(inode.durable))


def assert_cut(disk, scene, *, opens=False):
    """Finish the cut on a disk, or begin it if it had not begun, and check where that ends."""
    if "/d/cut.json" in disk.inodes:
        assert_saved(disk, scene.image, scene.offset, scene.end_offset)
        if opens:
            assert opened(disk, scene.store, scene.offset) == scene.opened
        complete(disk)
    elif contents(disk) != scene.after:
        assert contents(disk) == scene.before
        cut(disk, scene.offset)
    assert contents(disk) == scene.after
    assert durable(disk) == scene.after
    assert_saved(disk, scene.image, scene.offset, scene.end_offset)


def operations_of(disk, act):
    whole = DyingDisk.of(disk)
    act(whole)
    return whole.operations


def killed_at(disk, act, dies_at, bytes_written):
    dying = DyingDisk.of(disk, dies_at, bytes_written)
    with contextlib.suppress(Killed):
        act(dying)
    return dying


def left(dying, rng, *, power):
    """What the next process finds: after a power cut, some of the unsynced sectors."""
    if not power:
        return dying.kill()
    keep = rng.choice((0.0, 0.5, 1.0, rng.random()))
    return dying.cut_power(lambda: rng.random() < keep)


@both_stops
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power-cut"])
def test_cut_killed_at_any_operation_ends_at_the_same_bytes(clean, power):
    """Between two disk operations, or in the middle of a write; both at once: all or nothing."""
    found = scene(clean=clean)
    act = functools.partial(cut, physic_offset=found.offset)
    operations = operations_of(found.store.disk, act)
    for part in ("trimmed", "cut.json", "checkpoint", "commitlog", "consumequeue", "index"):
        assert any(part in operation for operation in operations)
    rng = random.Random(len(operations))
    seen = set()
    for dies_at, bytes_written in itertools.product(range(len(operations)), (0, 1, 700)):
        dying = killed_at(found.store.disk, act, dies_at, bytes_written)
        assert dying.dead
        disk = left(dying, rng, power=power)
        seen.add("/d/cut.json" in disk.inodes)
        assert_cut(disk, found, opens=not bytes_written)
    assert seen == {False, True}


@both_stops
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power-cut"])
def test_completion_killed_at_any_operation_is_completed(clean, power):
    """A second kill, at any operation of the completion of a cut that was killed anywhere."""
    found = scene(clean=clean)
    act = functools.partial(cut, physic_offset=found.offset)
    count = len(operations_of(found.store.disk, act))
    rng = random.Random(count)
    kills = 0
    for dies_at in range(count):
        first = left(
            killed_at(found.store.disk, act, dies_at, rng.choice((0, 300))), rng, power=power
        )
        if "/d/cut.json" not in first.inodes:
            continue
        again = len(operations_of(first, complete))
        for dies_again in rng.sample(range(again), min(again, 6)):
            second = killed_at(first, complete, dies_again, rng.choice((0, 1, 500)))
            kills += second.dead
            assert_cut(left(second, rng, power=power), found)
    assert kills > 100


@both_stops
def test_cut_completes_after_repeated_kills(clean):
    """Each opening is killed one operation later than the one before, or the power is cut."""
    found = scene(clean=clean)
    act = functools.partial(cut, physic_offset=found.offset)
    count = len(operations_of(found.store.disk, act))
    rng = random.Random(7)
    disk = found.store.disk
    for dies_at in range(count):
        dying = killed_at(disk, act, dies_at, rng.randrange(600))
        disk = left(dying, rng, power=dies_at % 3 > 0)
    assert_cut(disk, found)


@both_stops
@pytest.mark.parametrize("error", [DiskError, DiskFullError])
def test_disk_error_in_any_operation_is_raised_and_the_cut_goes_on(clean, error):
    """The lock is free; without an intent nothing has changed, and no copy is left over."""
    found = scene(clean=clean)
    act = functools.partial(cut, physic_offset=found.offset)
    operations = operations_of(found.store.disk, act)
    for refused, operation in enumerate(operations):
        trying = RefusingDisk.of(found.store.disk, refused, 100)
        trying.error = error
        with contextlib.suppress(error):
            act(trying)
            # A full disk costs a file of the index, which is built again.
            assert (error, "/index/" in operation) == (DiskFullError, True)
        assert trying.locked == set()
        if "/d/cut.json" not in trying.inodes and contents(trying) == found.before:
            assert not trying.files("/d/trimmed/")
        if "/index/" in operation and error is DiskFullError:
            opened(trying.kill(), found.store, found.offset)
        else:
            assert_cut(trying.kill(), found)


def after_failed_sync(store, act, number):
    """Let the n-th sync fail as on ext4; return the disk for the next process, None if none did."""
    disk = store.disk.kill()
    count = 0

    def fail(_operation):
        nonlocal count
        disk.disk.sync_failures = int(count == number)
        count += 1

    disk.before("sync", fail)
    try:
        act(disk)
    except FlushFailedError:
        return FakeDisk(disk=disk.disk.after_kill())
    assert count <= number
    return None


@both_stops
def test_failed_sync_leaves_nothing_in_the_page_cache_only(clean):
    """The kernel then counts pages as clean that the disk does not have.

    The next opening finishes the cut, so that even a power cut right after it changes nothing.
    """
    found = scene(clean=clean)
    act = functools.partial(cut, physic_offset=found.offset)
    number = 0
    while (disk := after_failed_sync(found.store, act, number)) is not None:
        number += 1
        assert "/d/cut.json" in disk.inodes
        complete(disk)
        for keep in (True, False):
            assert contents(disk.cut_power(lambda keep=keep: keep)) == found.after
    assert number > 5


def test_failed_sync_of_kept_bytes_loses_none_of_them():
    """Bytes before the cut that only the page cache has are written again, not dropped."""
    store = closed_store(3, clean=False)
    path = max(path for path in store.disk.inodes if "/commitlog/" in path)
    start = int(path.rpartition("/")[2])
    offset = max(put.physic_offset for put in store.puts)
    assert offset > start
    inode = store.disk.inodes[path]
    seen, half = inode.seen(), (offset - start) // 2
    inode.durable = seen[:half] + bytes(len(seen) - half)
    inode.clean = seen  # a failed sync
    cut(store.disk, offset)
    after = store.disk.cut_power()
    assert after.inodes[path].seen()[: offset - start] == seen[: offset - start]


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(5, 70), st.booleans(), st.data())
def test_any_cut_killed_anywhere_ends_at_the_same_bytes(seed, count, clean, data):
    """Of random stores with several files, topics, delayed messages and keys."""
    store = closed_store(seed, count, clean=clean)
    offset = data.draw(st.sampled_from(store.cut_points))
    act = functools.partial(cut, physic_offset=offset)
    whole = store.disk.kill()
    done = act(whole)
    found = Scene(
        store=store,
        offset=offset,
        end_offset=done.end_offset,
        image=log_bytes(store.disk),
        before=contents(store.disk),
        after=contents(whole),
        opened={},
    )
    rng = random.Random(seed)
    operations = operations_of(store.disk, act)
    for _ in range(8):
        dying = killed_at(store.disk, act, rng.randrange(len(operations)), rng.randrange(5_000))
        disk = left(dying, rng, power=rng.random() < 0.7)
        while "/d/cut.json" in disk.inodes and rng.random() < 0.5:
            again = len(operations_of(disk, complete))
            dying = killed_at(disk, complete, rng.randrange(again), rng.randrange(1_000))
            disk = left(dying, rng, power=rng.random() < 0.7)
        assert_cut(disk, found)


def test_epoch_file_is_the_last_to_change():
    """So a log never has fewer epochs than bytes that they wrote."""
    found = scene()
    act = functools.partial(cut, physic_offset=found.offset)
    operations = operations_of(found.store.disk, act)
    epochs = next(n for n, operation in enumerate(operations) if EPOCH_FILE in operation)
    assert all("cut.json" in operation for operation in operations[epochs + 1 :])

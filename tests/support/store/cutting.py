"""Closed stores with several files, queues, an index and epochs, to be cut; and what a cut leaves.

``ClosedStore`` is a store after a stop.  ``contents`` is what a cut must leave the same wherever it
is killed: every byte, except those of ``trimmed/`` and of the checkpoint, whose numbers count.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import attrs

from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.recovery.cut import complete_cut, cut_store
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.store_lock import StoreLock
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.store.message_store_model import CONFIG, Put, StorePair, message_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import StoreConfig
    from hastore.store.recovery.log_cut import LogCut

DELAYED = "SCHEDULE_TOPIC_XXXX"
TOPICS = ("orders", "%RETRY%group", DELAYED)
KEYS = ("k", "AaAa", "BBBB", "order-7")
REASON = "the master's log goes on differently"


@attrs.frozen(kw_only=True)
class ClosedStore:
    """A store that was closed; ``puts`` are its messages, in the log's order."""

    disk: FakeDisk
    puts: tuple[Put, ...]
    end_offset: int
    epochs: EpochHistory

    @property
    def cut_points(self) -> list[int]:
        """Every offset at which it can be cut, except its end."""
        ends = [put.next_offset for put in self.puts]
        return sorted({0, *(put.physic_offset for put in self.puts), *ends} - {self.end_offset})


def put_some(pair: StorePair, rng: random.Random, count: int) -> None:
    """Put random messages of all topics, some delayed, some in batches, most with keys."""
    for _ in range(count):
        topic = rng.choice(TOPICS)
        message = message_of(
            topic,
            rng.randrange(2),
            rng.randbytes(rng.choice((1, 40, 300))),
            tags=rng.choice((None, "red")),
            keys=rng.sample(KEYS, rng.randrange(3)),
        )
        is_batch = topic != DELAYED and rng.random() < 0.2
        if topic == DELAYED:
            properties = {**(message.properties or {}), "DELAY": "3"}
            message = attrs.evolve(message, properties=properties)
        pair.put([message] * 3 if is_batch else [message])
        pair.clock.ms += rng.choice((0, 1, 2_000))


def closed_store(
    seed: int = 1, count: int = 60, *, clean: bool = True, epochs: int = 3
) -> ClosedStore:
    """Return a stopped store; an unclean one was killed with an undispatched, unflushed tail."""
    rng = random.Random(seed)
    pair = StorePair()
    put_some(pair, rng, count)
    pair.dispatch()
    pair.flush_queues()
    pair.flush_log()
    pair.write_checkpoint()
    if clean:
        pair.store.close(clean=True)
    else:
        put_some(pair, rng, 5)
    disk = pair.disk.kill()
    starts = sorted(rng.sample(sorted({put.physic_offset for put in pair.puts}), epochs))
    starts[:1] = [0] if epochs else []
    history = EpochHistory(tuple(EpochEntry(2 * n + 1, start) for n, start in enumerate(starts)))
    if epochs:
        EpochFile(disk, f"/d/{EPOCH_FILE}").store(history)
    last = pair.puts[-1].next_offset
    return ClosedStore(
        disk=disk,
        puts=tuple(pair.puts),
        end_offset=max(last, pair.store.commit_log.max_offset),
        epochs=history,
    )


def reopened(disk: FakeDisk, puts: tuple[Put, ...], *, config: StoreConfig = CONFIG) -> StorePair:
    """Open a store beside the model of what must be in it."""
    pair = StorePair.__new__(StorePair)
    pair.config, pair.disk = config, disk
    pair.clock = FakeClock()
    pair.clock.ms = max([pair.clock.ms, *(put.store_ms for put in puts)])
    pair.puts = list(puts)
    pair.queue_ends = {}
    pair.open()
    pair.keep_what_is_there(puts[-1].next_offset if puts else 0)
    return pair


def cut(
    disk: FakeDisk, physic_offset: int, *, config: StoreConfig = CONFIG, **options: Any
) -> LogCut | None:
    """Cut the store on a disk, under its lock."""
    lock = StoreLock.take(disk, "/d")
    try:
        return cut_store(fake_env(disk), config, lock, physic_offset, reason=REASON, **options)
    finally:
        lock.release(clean=False)


def complete(disk: FakeDisk) -> LogCut | None:
    """Finish the cut on a disk, as an opening does."""
    lock = StoreLock.take(disk, "/d")
    try:
        return complete_cut(fake_env(disk), lock)
    finally:
        lock.release(clean=False)


def contents(
    disk: FakeDisk, image: Callable[[Any], bytes] = lambda inode: inode.seen()
) -> dict[str, Any]:
    """Return all files that a cut may change, by path."""
    found: dict[str, Any] = {
        path: image(inode)
        for path, inode in sorted(disk.inodes.items())
        if not path.startswith("/d/trimmed/") and not path.endswith(("/lock", "/checkpoint"))
    }
    checkpoint = StoreCheckpoint.open(disk.disk, "/d")
    found["checkpoint"] = (
        checkpoint.flushed_offset,
        checkpoint.confirm_offset,
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
    )
    return found


def log_bytes(disk: FakeDisk) -> bytes:
    """Return the bytes of all log files, end to end."""
    return b"".join(data for _, data in sorted(disk.files().items()))


def assert_saved(disk: FakeDisk, image: bytes, physic_offset: int, end_offset: int) -> None:
    """Check that ``trimmed/`` describes one cut, and that its files hold the bytes."""
    described = []
    for name, data in disk.files("/d/trimmed/").items():
        if name.startswith("cut-"):
            value = json.loads(data)
            if (value["offset"], value["end"]) == (physic_offset, end_offset):
                described.append(value)
    assert described
    for value in described:
        data = b"".join(disk.inodes[f"/d/{path}"].seen() for path in value["files"])
        assert data == image[physic_offset:end_offset]

"""Writes the logs of the benchmarks with hastore's own store; all bodies of a log have one size.

python -m tests.bench_pipeline.log_files DIR BYTES BODY_SIZE
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import AppendMessageStatus
from hastore.store.commit_log import CommitLog

FILE_SIZE = 64 * 1024 * 1024
BODY_START = 88  # of a record
TOPICS = ("Orders", "Payments", "Shipping")
TAGS = ("Created", "Changed", "Done", "Failed")
MESSAGES = 4_096  # different ones, which are then repeated


def some_messages(body_size: int) -> list[Message]:
    """Return typical messages: with a unique key, a tag and a key, and a body of random bytes."""
    rng = random.Random(body_size)
    return [
        Message(
            TOPICS[number % len(TOPICS)],
            rng.randbytes(body_size),
            queue_id=number % 8,
            properties={
                "UNIQ_KEY": f"7F00000100002A9F0000{number:012X}",
                "TAGS": TAGS[rng.randrange(len(TAGS))],
                "KEYS": f"order-{rng.randrange(10**9)}",
                "WAIT": "true",
            },
        )
        for number in range(MESSAGES)
    ]


def write_log(path: Path, size: int, body_size: int, file_size: int = FILE_SIZE) -> int:
    """Append until the log has ``size`` bytes; return the number of messages."""
    log = CommitLog.open(
        real_env(),
        StoreConfig(data_dir=str(path), mapped_file_size=file_size),
        store_host=("127.0.0.1", 10_911),
        needs_queue_offsets=True,
    )
    queue = log.mapped_file_queue
    messages = some_messages(body_size)
    count = 0
    # Stops early, so that a few records do not begin another file.
    while log.max_offset < size - 2 * (body_size + 400):
        message = messages[count % MESSAGES]
        while log.append_message(message).status is AppendMessageStatus.END_OF_FILE:
            wanted = queue.wanted_file_offset()
            queue.offer(queue.create_file(log.max_offset if wanted is None else wanted))
        count += 1
    targets = log.flush_targets()
    for mapped_file, _ in targets:
        mapped_file.disk_file.sync()
    log.mark_flushed(targets)
    log.close(clean=True)
    return count


def damage(path: Path) -> list[int]:
    """Flip a bit in the first body of each file; return the records' offsets."""
    files = sorted((path / "commitlog").iterdir())
    for file in files:
        with file.open("r+b") as opened:
            opened.seek(BODY_START)
            (byte,) = opened.read(1)
            opened.seek(BODY_START)
            opened.write(bytes([byte ^ 1]))
    return [int(file.name) for file in files]


if __name__ == "__main__":
    print(write_log(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

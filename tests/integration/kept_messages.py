"""What a node has promised to keep, and what its files hold."""

from __future__ import annotations

import struct
from pathlib import Path

from hastore.env.real import real_env
from hastore.status import PutMessageStatus
from hastore_scenarios.judge.log_image import read_records
from hastore_scenarios.worlds.process.world import ProcessWorld


def put_ok(world: ProcessWorld) -> set[str]:
    """Return the keys of all PUT_OK messages."""
    return {
        put.key
        for put in world.history.operations
        if put.status is PutMessageStatus.PUT_OK and put.wait
    }


def keys_in(directory: Path) -> dict[str | None, int]:
    """Return the keys that a log holds, with their offsets."""
    records = read_records(real_env().disk, str(directory))
    return {record.key: record.physic_offset for record in records}


def consume_queue_errors(directory: Path) -> list[str]:
    """Compare every unit of the consume queues with the log's records, from the raw bytes."""
    min_offset = min(int(path.name) for path in (directory / "commitlog").iterdir())
    wanted: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for record in read_records(real_env().disk, str(directory)):
        queue = wanted.setdefault((record.topic, record.queue_id), {})
        size = record.next_offset - record.physic_offset
        queue[record.queue_offset] = (record.physic_offset, size)
    errors = []
    for (topic, queue_id), records in wanted.items():
        found = {}
        for path in sorted((directory / "consumequeue" / topic / str(queue_id)).glob("*")):
            data = path.read_bytes()
            first = int(path.name) // 20
            for index, (physic_offset, size, _) in enumerate(struct.iter_unpack(">qiq", data)):
                if size and physic_offset >= min_offset:
                    found[first + index] = (physic_offset, size)
        if found != records:
            unlike = sorted(set(found.items()) ^ set(records.items()))
            errors.append(f"{topic}/{queue_id}: {len(unlike)} units, first {unlike[:4]}")
    return errors

"""Writes a directory like that of RocketMQ's recorded files, with every store and stream."""

import json

from tests.golden import digests, manifests, stores, streams

BLOCK_SIZE = 4096


def write(path):
    """Write all files, zeros as holes.  AssertionError if a byte is not RocketMQ's."""
    for name, data in files().items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_sparse(file, data)
    wrong = digests.differing(digests.of_directory(path))
    assert not wrong, f"not what RocketMQ wrote: {wrong}"


def files():
    """Return every file by name."""
    found = dict(streams.files())
    for store in digests.STORES:
        found |= {f"{store}/{name}": data for name, data in stores.store(store).files.items()}
    for store, name in manifests.names().items():
        found[name] = manifests.manifest(store).encode()
    for store, (begin, end) in stores.FIGURES.zeroed.items():
        last = stores.store(store).puts[-1]
        info = {
            "tornRecordOffset": last.physic_offset,
            "tornRecordSize": len(last.record),
            "zeroedFrom": begin,
            "zeroedTo": end,
        }
        found[f"{store}.info.json"] = json.dumps(info).encode()
    return found


def _write_sparse(path, data):
    with path.open("wb") as file:
        file.truncate(len(data))
        for position in range(0, len(data), BLOCK_SIZE):
            block = data[position : position + BLOCK_SIZE]
            if block.count(0) != len(block):
                file.seek(position)
                file.write(block)

"""Derives the figures and the digests again from RocketMQ's recorded files.

    python -m tests.golden [DIRECTORY]        ../shared/golden, or HASTORE_GOLDEN

Writes ``recorded.toml`` and ``digests.txt`` beside this file.
"""

import json
import struct
import sys
import textwrap
from pathlib import Path

from hastore.env.real import RealDisk
from hastore.store.record import message_codec
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from hastore.wire.ha_frames import HEADER
from tests.golden import digests, messages, recorded

SPECIAL = len(messages.messages(0))
HEADING = (
    "# Recorded when RocketMQ wrote the golden stores: recorded.py says what each figure means."
)


def stored_messages(store):
    """Return all messages of a log."""
    disk = RealDisk()
    walker = LogWalker(disk, find_log(disk, str(store)))
    return [
        message_codec.decode(walker.read(offset, check.size))
        for offset, check in walker.walk()
        if check.kind is RecordKind.MESSAGE
    ]


def store_figures(store):
    found = stored_messages(store)
    first_ms, times = recorded.times_of((m.born_timestamp_ms, m.store_timestamp_ms) for m in found)
    lines = [f"[store.{store.name}]", f"ordinary = {len(found) - SPECIAL}"]
    if "__CRC32#" in found[0].properties:
        lines.append("prop_crc = true")
    if (store / "abort").exists():
        lines.append(f"killed = {(store / 'abort').read_text()}")
    lines += derived_figures(store)
    return [*lines, f"first_ms = {first_ms}", *wrapped("times", times)]


def derived_figures(store):
    """Return the lines with the names of the index files and the checkpoint."""
    names = sorted(file.name for file in (store / "index").iterdir())
    numbers = struct.unpack_from(">5q", (store / "checkpoint").read_bytes())
    assert numbers[3] == 0, "masterFlushedOffset is another figure"
    last = {m.store_timestamp_ms: number for number, m in enumerate(stored_messages(store))}
    places = zip(("physic", "logics", "index"), numbers, strict=False)
    figures = {name: last[ms] for name, ms in places if ms}
    if numbers[4]:
        figures["confirm_offset"] = numbers[4]
    inline = ", ".join(f"{name} = {value}" for name, value in figures.items())
    return [f"index_files = {json.dumps(names)}", f"checkpoint = {{ {inline} }}"]


def zeroed_figures(golden):
    for path in sorted(golden.glob("*.info.json")):
        info = json.loads(path.read_text())
        yield f"{path.name.partition('.')[0]} = [{info['zeroedFrom']}, {info['zeroedTo']}]"


def stream_figures(golden):
    raw = (golden / "ha_stream_m2s.bin").read_bytes()
    parts, heartbeats, position = [], 0, 0
    while position < len(raw):
        _, size = HEADER.unpack_from(raw, position)
        parts += [HEADER.size, size] if size else [HEADER.size]
        heartbeats += not size
        position += HEADER.size + size
    left, pieces = iter(parts), ""
    for size in digests.arrived(golden):
        count = got = 0
        while got < size:
            got += next(left)
            count += 1
        assert got == size, "a piece that ends inside a header or a body"
        pieces += str(count)
    return [f"heartbeats = {heartbeats}", *wrapped("pieces", pieces)]


def wrapped(name, text):
    return [f'{name} = """', *textwrap.wrap(text, 98), '"""']


def figures_of(golden):
    """Return the text of ``recorded.toml``."""
    lines = [HEADING]
    for name in ("clean", "crashed", "propcrc", "replica_master"):
        lines += ["", *store_figures(golden / name)]
    lines += ["", "[replica]", *derived_figures(golden / "replica")]
    lines += ["", "[zeroed]", *zeroed_figures(golden)]
    lines += ["", "[stream]", *stream_figures(golden)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else digests.recorded_directory()
    recorded.FIGURES.write_text(figures_of(directory))
    digests.TABLE.write_text(digests.table_of(directory))

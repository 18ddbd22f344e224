"""The SHA-256 of every file that RocketMQ wrote, as a table that ``sha256sum -c`` reads, too.

Left out are ``lock`` and ``abort.bak``, which hold nothing of a store, and what the recording proxy
wrote (``ha_stream*_index.json``).
"""

import hashlib
import json
import os
from pathlib import Path

TABLE = Path(__file__).with_name("digests.txt")
STORES = (
    "clean",
    "crashed",
    "crashed_torn",
    "crashed_torn_props",
    "propcrc",
    "replica_master",
    "replica",
)
LEFT_OUT = ("lock", "abort.bak")


def recorded_directory():
    """Where RocketMQ's own files are looked for."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "golden"
    return Path(os.environ.get("HASTORE_GOLDEN", beside))


def load():
    """SHA-256 by file."""
    rows = (line.split("  ", maxsplit=1) for line in TABLE.read_text().splitlines())
    return {name: digest for digest, name in rows}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def of_directory(golden):
    """SHA-256 by file, of the files that are in the table."""
    files = [
        *(file for store in STORES for file in (golden / store).rglob("*") if file.is_file()),
        *golden.glob("*.manifest.json"),
        *golden.glob("*.info.json"),
        *golden.glob("*.bin"),
    ]
    return {
        str(file.relative_to(golden)): sha256(file.read_bytes())
        for file in sorted(files)
        if file.name not in LEFT_OUT
    }


def differing(found):
    """The files of which RocketMQ wrote other bytes, or that only one of the two has."""
    expected = load()
    return sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))


def table_of(golden):
    """The table's text."""
    return "".join(f"{digest}  {name}\n" for name, digest in of_directory(golden).items())


def arrived(golden):
    """The sizes in which the master's half of the HA session reached the recording proxy."""
    rows = json.loads((golden / "ha_stream_index.json").read_text())
    return [size for _, direction, size in rows if direction == "m2s"]

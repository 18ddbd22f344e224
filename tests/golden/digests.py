"""The SHA-256 of every file that RocketMQ wrote, as a table that ``sha256sum -c`` can read.

It leaves out ``lock`` and ``abort.bak``, which hold no data of a store, and the recording proxy's
files (``ha_stream*_index.json``).
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
    """Return the directory in which RocketMQ's own files are expected."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "golden"
    return Path(os.environ.get("HASTORE_GOLDEN", beside))


def load():
    """Return the SHA-256 by file."""
    rows = (line.split("  ", maxsplit=1) for line in TABLE.read_text().splitlines())
    return {name: digest for digest, name in rows}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def of_directory(golden):
    """Return the SHA-256 by file, of the files that belong in the table."""
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
    """Return the files whose digest is not the table's, or that only one of the two has."""
    expected = load()
    return sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))


def table_of(golden):
    """Return the table's text."""
    return "".join(f"{digest}  {name}\n" for name, digest in of_directory(golden).items())


def arrived(golden):
    """Return the sizes in which the master's bytes of the session reached the recording proxy."""
    rows = json.loads((golden / "ha_stream_index.json").read_text())
    return [size for _, direction, size in rows if direction == "m2s"]

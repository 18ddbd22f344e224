"""Builds small logs, record by record, for tests of their readers."""

from pathlib import Path

from hastore.message import StoredMessage
from hastore.store.record import layout, message_codec
from hastore.store.record.record_check import body_crc32
from hastore.store.tools.log_verify import verify_log

FILE_SIZE = 4096
FIRST_MS = 1_700_000_000_000


class LogBuilder:
    """A log in memory: ``data`` from ``min_offset`` on; ``offsets`` are those of its messages."""

    def __init__(self, *, file_size=FILE_SIZE, min_offset=0, prop_crc=True):
        self.file_size = file_size
        self.min_offset = min_offset
        self.prop_crc = prop_crc
        self.data = bytearray()
        self.offsets = []
        self.blanks = []
        self._next = {}

    @property
    def end(self):
        return self.min_offset + len(self.data)

    def add(self, body=b"body", *, topic="orders", queue_id=0, key="k", **fields):
        """Append one message; ``fields`` are those of StoredMessage."""
        raw = fields.pop("properties_raw", f"KEYS\x01{key}\x02".encode())
        raw += bytes(layout.PROP_CRC_SIZE * self.prop_crc)
        is_v2 = fields.get("magic") == layout.MESSAGE_MAGIC_CODE_V2
        hosts = [fields.get(name, ("", 0))[0] for name in ("born_host", "store_host")]
        size = 91 + is_v2 + 12 * sum(":" in host for host in hosts)
        size += len(body) + len(topic.encode(errors="surrogateescape")) + len(raw)
        left = self.file_size - len(self.data) % self.file_size
        if size + 8 > left:
            self.blank(left)
        queue_offset = self._next.get((topic, queue_id), 0)
        message = {
            "magic": layout.MESSAGE_MAGIC_CODE,
            "body_crc": body_crc32(body),
            "queue_id": queue_id,
            "flag": 0,
            "queue_offset": queue_offset,
            "physic_offset": self.end,
            "sys_flag": 0,
            "born_timestamp_ms": FIRST_MS,
            "born_host": ("127.0.0.1", 1),
            "store_timestamp_ms": FIRST_MS + len(self.offsets),
            "store_host": ("127.0.0.1", 10_911),
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            "body": body,
            "topic": topic,
            "properties_raw": raw,
            "total_size": size,
            "properties": {},
        } | fields
        self._next[topic, queue_id] = message["queue_offset"] + 1
        record = bytearray(message_codec.encode(StoredMessage(**message)))
        if self.prop_crc:
            message_codec.append_prop_crc(record)
        self.offsets.append(self.end)
        self.data += record
        return self

    def fill(self, count, **fields):
        """Append messages of 100-byte bodies with the keys k0, k1, ..."""
        for number in range(count):
            self.add(b"%100d" % number, key=f"k{len(self.offsets)}", **fields)
        return self

    def blank(self, left):
        self.blanks.append(self.end)
        self.data += message_codec.encode_blank(left) + bytes(left - 8)

    def write(self, path: Path, *, data=None, end_file=None) -> Path:
        """Write the files (the last one filled up with zeros); return the store's directory."""
        data = bytes(self.data if data is None else data)
        log = path / "commitlog"
        log.mkdir(parents=True)
        for start in range(0, len(data), self.file_size):
            name = f"{self.min_offset + start:020d}"
            (log / name).write_bytes(
                data[start : start + self.file_size].ljust(self.file_size, b"\0")
            )
        return path

    def flipped(self, offset, flip=0xFF):
        """Return the data with one byte changed."""
        data = bytearray(self.data)
        data[offset - self.min_offset] ^= flip
        return data


class MemoryDisk:
    """The part of a Disk that a walk needs, for one log in memory; reads call ``on_read``."""

    def __init__(self, builder, data=None):
        from hastore.store.tools.log_directory import LogDirectory, LogFile

        data = bytes(builder.data if data is None else data)
        size = builder.file_size
        self.files = {
            f"{builder.min_offset + start:020d}": bytearray(
                data[start : start + size].ljust(size, b"\0")
            )
            for start in range(0, len(data), size)
        }
        self.log = LogDirectory(
            root=None,
            path="memory",
            files=tuple(
                LogFile(path=name, name=name, physic_offset=int(name), size=size)
                for name in self.files
            ),
            strays=(),
            mapped_file_size=size,
        )
        self.on_read = lambda: None
        self.next_data = lambda _path, position: position  # like a file system without holes

    def open_file(self, path, *, writable):
        assert not writable
        return MemoryFile(self, path)

    def verify(self):
        return verify_log(self, self.log)


class MemoryFile:
    """An open file of a MemoryDisk."""

    def __init__(self, disk, path):
        self.disk, self.path = disk, path
        self.size = len(disk.files[path])

    def pread(self, size, position):
        data = bytes(self.disk.files[self.path][position : position + size])
        self.disk.on_read()
        return data

    def next_data(self, position):
        return self.disk.next_data(self.path, position)

    def close(self):
        pass


def damage_of(report):
    """Return the damage in a report as (kind, offset, next offset)."""
    return [
        (finding.kind, finding.physic_offset, finding.next_offset)
        for finding in report.findings
        if finding.severity.value == "damage"
    ]


def warnings_of(report):
    """Return the warnings in a report as (kind, offset)."""
    return [
        (finding.kind, finding.physic_offset)
        for finding in report.findings
        if finding.severity.value == "warning"
    ]

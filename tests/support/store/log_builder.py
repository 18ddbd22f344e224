"""Builds small logs, record by record, for tests of their readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from hastore.config import StoreConfig
from hastore.message import StoredMessage
from hastore.store.queue.unit import UNIT, UNIT_SIZE
from hastore.store.record import layout, message_codec
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.derived_record import derive
from hastore.store.record.record_check import body_crc32
from hastore.store.tools.log_verify import VerifyReport
from tests.support.env.fake_disk import FakeDisk

FILE_SIZE = 4096
QUEUE_FILE_SIZE = 50 * UNIT_SIZE
FIRST_MS = 1_700_000_000_000


class LogBuilder:
    """A log in memory: ``data`` from ``min_offset`` on; ``offsets`` are those of its messages."""

    def __init__(
        self, *, file_size: int = FILE_SIZE, min_offset: int = 0, prop_crc: bool = True
    ) -> None:
        self.file_size = file_size
        self.min_offset = min_offset
        self.prop_crc = prop_crc
        self.data = bytearray()
        self.offsets: list[int] = []
        self.blanks: list[int] = []
        self.planted: list[int] = []  # offsets of records in bodies
        self._next: dict[tuple[str, int], int] = {}
        self._units: dict[tuple[str, int], dict[int, bytes]] = {}

    @property
    def end(self) -> int:
        return self.min_offset + len(self.data)

    def add(
        self,
        body: bytes = b"body",
        *,
        topic: str = "orders",
        queue_id: int = 0,
        key: str = "k",
        **fields: Any,
    ) -> Self:
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
        message: dict[str, Any] = {
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
        self._add_unit(StoredMessage(**message))
        self.offsets.append(self.end)
        self.data += record
        return self

    def fill(self, count: int, **fields: Any) -> Self:
        """Append messages of 100-byte bodies with the keys k0, k1, ..."""
        for number in range(count):
            self.add(b"%100d" % number, key=f"k{len(self.offsets)}", **fields)
        return self

    def plant(
        self, *, topic: str = "secret", count: int = 3, before: int = 300, more: bytes = b"q" * 300
    ) -> Self:
        """Append a message whose body holds whole records of another topic, each in its place."""
        planted = LogBuilder(
            file_size=1 << 30,
            min_offset=self.end + layout.BODY_POSITIONS[0] + before,
            prop_crc=self.prop_crc,
        )
        for number in range(count):
            planted.add(b"FORGED-%d" % number, topic=topic)
        self.planted += planted.offsets
        return self.add(b"p" * before + bytes(planted.data) + more, topic="mine")

    def plant_heads(self, count: int, *, stop: int, more: bytes = b"") -> Self:
        """Append a message whose body holds heads of records, each of which claims all to ``stop``.

        Zeros before ``stop`` make their lengths right; only their checksums are wrong.
        """
        at = self.end + layout.BODY_POSITIONS[0]
        body = b""
        for _ in range(count):
            size = stop - at - len(body)
            body_size = size - layout.BODY_POSITIONS[0] - layout.TEXTS_SIZE_MIN
            body += layout.HEADS[0].pack(
                *(size, layout.MESSAGE_MAGIC_CODE, 1, 0, 0, 0, at + len(body), 0),
                *(FIRST_MS, bytes(8), FIRST_MS, bytes(8), 0, 0, body_size),
            )
        self.planted += range(at, at + len(body), layout.BODY_POSITIONS[0])
        return self.add(body + more, topic="mine")

    def _add_unit(self, message: StoredMessage) -> None:
        derived = derive(
            message.topic,
            sys_flag=message.sys_flag,
            store_ms=message.store_timestamp_ms,
            properties=message.properties_raw,
            delay_levels=DelayLevels.parse(StoreConfig(data_dir=".").message_delay_level),
        )
        if derived.is_in_queue:
            unit = UNIT.pack(message.physic_offset, message.total_size, derived.tags_code)
            queue = self._units.setdefault((message.topic, message.queue_id), {})
            queue[message.queue_offset] = unit

    def blank(self, left: int) -> None:
        self.blanks.append(self.end)
        self.data += message_codec.encode_blank(left) + bytes(left - 8)

    def files(self, data: bytes | bytearray | None = None) -> dict[str, bytes]:
        """Return the files by name, the last one filled up with zeros."""
        data = bytes(self.data if data is None else data)
        return {
            f"{self.min_offset + start:020d}": data[start : start + self.file_size].ljust(
                self.file_size, b"\0"
            )
            for start in range(0, len(data), self.file_size)
        }

    def queue_files(self) -> dict[str, bytes]:
        """Return the consume queues' files by their path in ``consumequeue/``."""
        files: dict[str, bytearray] = {}
        for (topic, queue_id), units in self._units.items():
            for queue_offset, unit in units.items():
                file, place = divmod(queue_offset * UNIT_SIZE, QUEUE_FILE_SIZE)
                name = f"{topic}/{queue_id}/{file * QUEUE_FILE_SIZE:020d}"
                content = files.setdefault(name, bytearray(QUEUE_FILE_SIZE))
                content[place : place + UNIT_SIZE] = unit
        return {name: bytes(content) for name, content in files.items()}

    def write(
        self, path: Path, *, data: bytes | bytearray | None = None, queues: bool = False
    ) -> Path:
        """Write the files, also of the consume queues if asked; return the store's directory."""
        log = path / "commitlog"
        log.mkdir(parents=True)
        for name, content in self.files(data).items():
            (log / name).write_bytes(content)
        for name, content in (self.queue_files() if queues else {}).items():
            (path / "consumequeue" / name).parent.mkdir(parents=True, exist_ok=True)
            (path / "consumequeue" / name).write_bytes(content)
        return path

    def on_disk(self, data: bytes | bytearray | None = None, *, queues: bool = True) -> FakeDisk:
        """Return a disk with the log and its consume queues in ``/d``."""
        disk = disk_with(d=self.files(data))
        for name, content in (self.queue_files() if queues else {}).items():
            disk.make_dirs(f"/d/consumequeue/{name.rpartition('/')[0]}")
            disk.put(f"/d/consumequeue/{name}", content)
        return disk

    def flipped(self, offset: int, flip: int = 0xFF) -> bytearray:
        """Return the data with one byte changed."""
        data = bytearray(self.data)
        data[offset - self.min_offset] ^= flip
        return data


def disk_with(**logs: dict[str, bytes]) -> FakeDisk:
    """Return a disk with a log in each directory: ``left=files`` is that of ``/left``."""
    disk = FakeDisk()
    for root, files in logs.items():
        disk.make_dirs(f"/{root}/commitlog")
        for name, data in files.items():
            disk.put(f"/{root}/commitlog/{name}", data)
    return disk


def overwrite(store: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a log with files of ``FILE_SIZE``."""
    path = store / "commitlog" / f"{offset - offset % FILE_SIZE:020d}"
    with path.open("r+b") as file:
        file.seek(offset % FILE_SIZE)
        file.write(data)


def damage_of(report: VerifyReport) -> list[tuple[str, int, int]]:
    """Return the damage in a report as (kind, offset, next offset)."""
    return [
        (finding.kind, finding.physic_offset, finding.next_offset)
        for finding in report.findings
        if finding.severity.value == "damage"
    ]


def warnings_of(report: VerifyReport) -> list[tuple[str, int]]:
    """Return the warnings in a report as (kind, offset)."""
    return [
        (finding.kind, finding.physic_offset)
        for finding in report.findings
        if finding.severity.value == "warning"
    ]

"""The rows that a log's table must have: from a record-by-record walk, and from a manifest."""

import hashlib
import ipaddress
import json
from pathlib import Path
from typing import Any

from hastore.columnar.log_schema import COLUMNS
from hastore.env.real import real_env
from hastore.message import StoredMessage
from hastore.store.record.body_compression import decoded
from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordCheck, RecordKind, body_crc32
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker

Row = dict[str, Any]
DISK = real_env().disk
# The lengths are consistent, so the row is complete.
MEASURED = {
    RecordKind.MESSAGE,
    RecordKind.BAD_BODY_CRC,
    RecordKind.BAD_PROP_CRC,
    RecordKind.BAD_PHYSIC_OFFSET,
}


def row_of(message: StoredMessage, store: str, file_size: int, check: RecordCheck) -> Row:
    """Return the row that a message must have, from the record-by-record codec."""
    text = {name: message.properties.get(name) for name in ("TAGS", "KEYS", "UNIQ_KEY")}
    is_sound = check.kind is RecordKind.MESSAGE
    return {
        "store": store,
        "physic_offset": message.physic_offset,
        "size": message.total_size,
        "topic": valid(message.topic),
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tags": valid(text["TAGS"]),
        "keys": valid(text["KEYS"]),
        "uniq_key": valid(text["UNIQ_KEY"]),
        "properties": {valid(name): valid(value) for name, value in message.properties.items()},
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp_ms,
        "store_timestamp": message.store_timestamp_ms,
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body": decoded(message).body,
        "body_fault": decoded(message).body_fault,
        "body_crc": message.body_crc,
        "crc_ok": body_crc32(message.body) == message.body_crc,
        "record_ok": is_sound,
        "segment": f"{message.physic_offset - message.physic_offset % file_size:020d}",
        "fault": None if is_sound else f"{check.kind.value}: {check.detail}",
    }


def host_text(host: tuple[str, int]) -> str:
    """Return a host as the table shows it."""
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def valid(text: str | None) -> str | None:
    """Return a text as a table has it: bytes that are not UTF-8 are replaced."""
    if text is None:
        return None
    return text.encode(errors="surrogateescape").decode(errors="replace")


def walked(path: str | Path) -> list[Row]:
    """Return the rows that a store's table must have, from the walk that ``log verify`` uses."""
    log = find_log(DISK, str(path))
    assert log.mapped_file_size is not None
    rows = []
    walker = LogWalker(DISK, log)
    for offset, check in walker.walk():
        if check.kind is RecordKind.BLANK:
            continue
        segment = f"{offset - offset % log.mapped_file_size:020d}"
        if check.kind in MEASURED:
            message = decode(walker.read(offset, check.size))
            row = row_of(message, str(path), log.mapped_file_size, check)
            rows.append(row | {"physic_offset": offset, "segment": segment})
        else:
            damage = {
                "store": str(path),
                "physic_offset": offset,
                "size": check.size,
                "segment": segment,
                "record_ok": False,
                "fault": f"{check.kind.value}: {check.detail}",
            }
            rows.append(dict.fromkeys(COLUMNS) | damage)
    return rows


def plain(rows: list[Row]) -> list[Row]:
    """Return the rows with times in ms, as the log has them."""
    for row in rows:
        for name in ("born_timestamp", "store_timestamp"):
            if row[name] is not None and not isinstance(row[name], int):
                row[name] = round(row[name].timestamp() * 1000)
    return rows


def check_manifest(rows: list[Row], path: Path) -> None:
    """Compare all rows (``plain``) with a manifest's messages, field by field."""
    records = [r for r in json.loads(path.read_text())["records"] if r["type"] == "MSG"]
    assert len(rows) == len(records) > 50
    for row, record in zip(rows, records, strict=True):
        assert row["record_ok"]
        assert row["crc_ok"]
        assert row["fault"] is None
        for column, field in _FIELDS.items():
            value = record[field]
            if column.endswith("_host"):
                address, port = value.split("|")
                value = host_text((str(ipaddress.ip_address(address)), port))
            found = row[column]
            if column == "body":
                found = hashlib.sha256(found).hexdigest()
            assert found == value, (row["physic_offset"], column)


_FIELDS = {
    "physic_offset": "physicalOffset",
    "size": "totalSize",
    "topic": "topic",
    "queue_id": "queueId",
    "queue_offset": "queueOffset",
    "flag": "flag",
    "sys_flag": "sysFlag",
    "tags": "tags",
    "keys": "keys",
    "uniq_key": "uniqKey",
    "properties": "properties",
    "body_crc": "bodyCRC",
    "born_timestamp": "bornTimestamp",
    "store_timestamp": "storeTimestamp",
    "born_host": "bornHost",
    "store_host": "storeHost",
    "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset",
    "body": "bodySha256",
}

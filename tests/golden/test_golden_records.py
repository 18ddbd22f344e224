"""Every record that real RocketMQ wrote, compared with what RocketMQ itself read from it."""

import hashlib
import ipaddress
import json

import pytest

from hastore.store.record import message_codec, record_check
from hastore.store.record.record_check import RecordKind

MANIFESTS = {
    "clean": "clean",
    "crashed": "crashed.recovered",
    "crashed_torn": "crashed_torn.recovered",
    "crashed_torn_props": "crashed_torn_props.recovered",
    "propcrc": "propcrc",
    "replica": "replica",
    "replica_master": "replica_master",
}
# Manifest key → the same value of a decoded message.
FIELDS = {
    "magic": lambda m: f"{m.magic & 0xFFFFFFFF:08x}",
    "physicalOffsetField": lambda m: m.physic_offset,
    "totalSize": lambda m: m.total_size,
    "topic": lambda m: m.topic,
    "queueId": lambda m: m.queue_id,
    "queueOffset": lambda m: m.queue_offset,
    "flag": lambda m: m.flag,
    "sysFlag": lambda m: m.sys_flag,
    "tags": lambda m: m.properties.get("TAGS"),
    "keys": lambda m: m.properties.get("KEYS"),
    "uniqKey": lambda m: m.properties.get("UNIQ_KEY"),
    "bodyCRC": lambda m: m.body_crc,
    "bornTimestamp": lambda m: m.born_timestamp_ms,
    "storeTimestamp": lambda m: m.store_timestamp_ms,
    "reconsumeTimes": lambda m: m.reconsume_times,
    "preparedTransactionOffset": lambda m: m.prepared_transaction_offset,
    "offsetMsgId": lambda m: message_codec.message_id(m.store_host, m.physic_offset),
    "bodyLen": lambda m: len(m.body),
    "bodySha256": lambda m: hashlib.sha256(m.body).hexdigest(),
    "recordSha256": lambda m: hashlib.sha256(message_codec.encode(m)).hexdigest(),
    "properties": lambda m: dict(m.properties),
}


@pytest.fixture(params=MANIFESTS)
def rows(golden, request):
    """Return each row of a manifest with the bytes of its log file, and its position in them."""
    manifest = json.loads((golden / f"{MANIFESTS[request.param]}.manifest.json").read_text())
    file_size = manifest["mappedFileSizeCommitLog"]
    found = []
    for row in manifest["records"]:
        file_number, position = divmod(row["physicalOffset"], file_size)
        path = golden / request.param / "commitlog" / f"{file_number * file_size:020d}"
        found.append((row, path.read_bytes(), position))
    return found


def test_every_golden_record_decodes_to_its_manifest_row(rows):
    """All fields, ids, digests and properties are what RocketMQ read back."""
    for row, data, position in rows:
        if row["type"] != "MSG":
            continue
        message = message_codec.decode(data, position)
        decoded = {key: field(message) for key, field in FIELDS.items()}
        assert decoded == {key: row.get(key) for key in FIELDS}
        for key, (address, port) in {
            "bornHost": message.born_host,
            "storeHost": message.store_host,
        }.items():
            assert same_host(row[key], address, port), (row[key], address, port)


def same_host(text, address, port):
    """Return whether a manifest's ``address|port`` is this host (it writes IPv6 in full)."""
    their_address, _, their_port = text.rpartition("|")
    return ipaddress.ip_address(their_address) == ipaddress.ip_address(address) and port == int(
        their_port
    )


def test_every_golden_record_encodes_back_to_the_same_bytes(rows):
    """They include V2 records, IPv6 hosts and records without properties."""
    for row, data, position in rows:
        if row["type"] == "MSG":
            record = data[position : position + row["totalSize"]]
            assert message_codec.encode(message_codec.decode(data, position)) == record


def test_every_golden_record_and_filler_passes_the_check(rows):
    """Lengths, offsets and CRCs are right, including `__CRC32#`, and each BLANK fits."""
    for row, data, position in rows:
        offset = row["physicalOffset"]
        check = record_check.check_record(data, position, len(data) - position, offset)
        kind = RecordKind.MESSAGE if row["type"] == "MSG" else RecordKind.BLANK
        assert (check.kind, check.size) == (kind, row["totalSize"])
        assert check.has_prop_crc == ("__CRC32#" in row.get("properties", {}))

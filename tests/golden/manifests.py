"""The manifests: what RocketMQ itself read back from each store, derived from the formula.

No hastore decoder is used here; of its records, only sizes, digests and raw bytes are.
"""

import hashlib
import ipaddress
import json
import zlib

from hastore.topic import SCHEDULE_TOPIC
from tests.golden import messages, stores

HEAD = {
    "generator": "RocketMQ 5.x-develop DefaultMessageStore",
    "mappedFileSizeCommitLog": stores.FILE_SIZE,
    "mappedFileSizeConsumeQueue": stores.QUEUE_FILE_SIZE,
    "maxHashSlotNum": stores.HASH_SLOTS,
    "maxIndexNum": stores.INDEX_ENTRIES,
    "minPhyOffset": 0,
}
KEY_QUERIES = (
    ("GoldenA", "dup"),
    ("GoldenB", "dup"),
    ("Golden_C", "dup"),
    ("GoldenA", "K30"),
    ("GoldenB", "K31"),
    ("GoldenBatch", "KBatch3"),
    ("GoldenTx", "KTx4"),
    ("GoldenTx", "KTx8"),
    ("GoldenA", "nosuch"),
)
KINDS_IN_QUEUES = (0, messages.COMMITTED)
PROP_CRC = b"__CRC32#\x01"
V1_TOPIC_SIZE_MAX = 127


def names():
    """Return the file names by store."""
    return {
        name: f"{name}.recovered.manifest.json"
        if name.startswith("crashed")
        else f"{name}.manifest.json"
        for name in (*stores.FIGURES.stores, *stores.FIGURES.zeroed, "replica")
    }


def manifest(name):
    """Return one manifest's text."""
    store = stores.store(name)
    rows = [_row(put) for put in store.puts]
    if name in stores.FIGURES.zeroed:
        rows[-1:] = _torn_rows(rows[-1], store, *stores.FIGURES.zeroed[name])
    kept = {row["physicalOffset"] for row in rows}
    puts = [put for put in store.puts if put.physic_offset in kept]
    rows += [
        {"type": "BLANK", "physicalOffset": offset, "totalSize": size}
        for offset, size in stores.blanks(store)
    ]
    rows.sort(key=lambda row: row["physicalOffset"])
    head = HEAD | {"maxPhyOffset": puts[-1].end_offset}
    lists = {"records": rows, "queues": _queues(puts), "keyQueries": _key_queries(puts)}
    texts = [f'"{key}":[\n' + ",\n".join(map(_json, found)) + "]" for key, found in lists.items()]
    return ",\n".join([_json(head).removesuffix("}"), *texts]) + "}\n"


def _json(value):
    return json.dumps(value, separators=(",", ":"))


def _row(put):
    message, record = put.message, put.record
    properties = dict(message.properties or {})
    code = messages.java_hash(properties.get("TAGS", ""))
    if message.topic == SCHEDULE_TOPIC:
        level = int(properties["DELAY"])
        code = messages.LEVELS.deliver_time_ms(level, put.store_timestamp_ms)
    if PROP_CRC in record:
        properties["__CRC32#"] = record[-11:-1].decode()
    is_in_queue = message.sys_flag & messages.ROLLED_BACK in KINDS_IN_QUEUES
    return {
        "type": "MSG",
        "magic": "daa320ab" if len(message.topic) > V1_TOPIC_SIZE_MAX else "daa320a7",
        "physicalOffset": put.physic_offset,
        "totalSize": len(record),
        "physicalOffsetField": put.physic_offset,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": put.queue_offset,
        "flag": message.flag,
        "sysFlag": message.sys_flag
        | (messages.V6_BORN if _is_v6(message.born_host) else 0)
        | (messages.V6_STORE if _is_v6(put.store_host) else 0),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "uniqKey": properties.get("UNIQ_KEY"),
        "bodyCRC": zlib.crc32(message.body) & 0x7FFFFFFF,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": _host(message.born_host),
        "storeTimestamp": put.store_timestamp_ms,
        "storeHost": _host(put.store_host),
        "reconsumeTimes": 0,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "tagsCode": code,
        "dispatchOk": True,
        "cqTagsCode": code if is_in_queue else None,
        "cqPhyOffset": put.physic_offset if is_in_queue else None,
        "cqSize": len(record) if is_in_queue else None,
        "offsetMsgId": _message_id(put),
        "bodyLen": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "recordSha256": hashlib.sha256(record).hexdigest(),
        "properties": dict(sorted(properties.items())),
    }


def _is_v6(host):
    return ":" in host[0]


def _host(host):
    """Return an address as Java prints it: IPv6 in full, without leading zeros."""
    address = ipaddress.ip_address(host[0])
    if address.version == 4:
        return f"{address}|{host[1]}"
    words = [f"{int(word, 16):x}" for word in address.exploded.split(":")]
    return f"{':'.join(words)}|{host[1]}"


def _message_id(put):
    address, port = put.store_host
    packed = ipaddress.ip_address(address).packed + port.to_bytes(4)
    return (packed + put.physic_offset.to_bytes(8)).hex().upper()


def _torn_rows(row, store, zeroed_from, zeroed_to):
    """Return the row that RocketMQ keeps of a torn last record: none if its body is torn, too."""
    put = store.puts[-1]
    assert put.physic_offset < zeroed_from < zeroed_to == put.end_offset
    record = put.record[: zeroed_from - put.physic_offset].ljust(len(put.record), b"\0")
    raw_size = sum(2 + len(k) + len(v) for k, v in put.message.properties.items())
    if zeroed_from < put.end_offset - raw_size:
        return []
    pairs = (text.split("\x01") for text in record[-raw_size:].decode().split("\x02"))
    properties = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    changed = {
        "tags": properties.get("TAGS"),
        "uniqKey": properties["UNIQ_KEY"],
        "tagsCode": 0,
        "recordSha256": hashlib.sha256(record).hexdigest(),
        "properties": properties,
    }
    return [row | changed]


def _queues(puts):
    """Return each consume queue's limits, in the order of their directories' names."""
    ends = {}
    for put in puts:
        if put.message.sys_flag & messages.ROLLED_BACK in KINDS_IN_QUEUES:
            ends[put.message.topic, str(put.message.queue_id)] = put.queue_offset + 1
    return [
        {"topic": topic, "queueId": int(queue_id), "minOffset": 0, "maxOffset": end}
        for (topic, queue_id), end in sorted(ends.items())
    ]


def _key_queries(puts):
    """Return the answers of RocketMQ's index."""
    return [
        {
            "topic": topic,
            "key": key,
            "physicalOffsets": [
                put.physic_offset
                for put in puts
                if put.message.topic == topic
                and key in (put.message.properties or {}).get("KEYS", "").split(" ")
            ],
        }
        for topic, key in KEY_QUERIES
    ]

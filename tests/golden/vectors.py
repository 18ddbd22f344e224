"""Records written by hand, field by field, and the messages that they must decode to.

Where possible the body is 123456789: its CRC32 is in every book (cbf43926), and a record holds it
without the sign bit (4bf43926).
"""

import attrs

from hastore.message import StoredMessage

V1_MAGIC = -626843481
V2_MAGIC = -626843477


@attrs.frozen
class Vector:
    """One record: its bytes, its values, and its offsetMsgId."""

    name: str
    record: bytes
    message: StoredMessage
    message_id: str


def _bytes(*fields: str) -> bytes:
    return bytes.fromhex("".join(fields))


_PLAIN_FIELDS = (
    "daa320a7",  # magic, V1
    "4bf43926",  # bodyCRC
    "00000003",  # queueId
    "00000007",  # flag
    "0000000000000029",  # queueOffset 41
    "0000000000010000",  # physicalOffset 65536
    "00000000",  # sysFlag
    "0000018bcfe56800",  # bornTimestamp 1700000000000
    "0a010203" + "00008707",  # bornHost 10.1.2.3:34567
    "0000018bcfe56801",  # storeTimestamp
    "7f000001" + "00002a9f",  # storeHost 127.0.0.1:10911
    "00000001",  # reconsumeTimes
    "ffffffffffffffff",  # preparedTransactionOffset -1
    "00000009" + "313233343536373839",  # body
    "05" + "5468656d65",  # topic Theme
)
_PLAIN = StoredMessage(
    magic=V1_MAGIC,
    body_crc=0x4BF43926,
    queue_id=3,
    flag=7,
    queue_offset=41,
    physic_offset=65_536,
    sys_flag=0,
    born_timestamp_ms=1_700_000_000_000,
    born_host=("10.1.2.3", 34_567),
    store_timestamp_ms=1_700_000_000_001,
    store_host=("127.0.0.1", 10_911),
    reconsume_times=1,
    prepared_transaction_offset=-1,
    body=b"123456789",
    topic="Theme",
    properties_raw=b"",
    total_size=105,
    properties={},
)
_PLAIN_ID = "7F00000100002A9F0000000000010000"

NO_PROPERTIES = Vector(
    "no properties", _bytes("00000069", *_PLAIN_FIELDS, "0000"), _PLAIN, _PLAIN_ID
)

LAST_SEPARATOR = Vector(
    "last separator",  # RocketMQ up to 4.8 and from 5.2
    _bytes("00000071", *_PLAIN_FIELDS, "0008" + "4b455953" + "01" + "6b31" + "02"),  # KEYS k1
    attrs.evolve(
        _PLAIN, total_size=113, properties_raw=b"KEYS\x01k1\x02", properties={"KEYS": "k1"}
    ),
    _PLAIN_ID,
)

NO_LAST_SEPARATOR = Vector(
    "no last separator",  # RocketMQ 4.9.3 to 5.1.4
    _bytes(
        "00000076",
        *_PLAIN_FIELDS,
        "000d" + "4b455953" + "01" + "6b31" + "02" + "54" + "01" + "c3a973",
    ),
    attrs.evolve(
        _PLAIN,
        total_size=118,
        properties_raw=b"KEYS\x01k1\x02T\x01\xc3\xa9s",
        properties={"KEYS": "k1", "T": "és"},
    ),
    _PLAIN_ID,
)

PROP_CRC = Vector(
    "__CRC32#",
    # CRC32 of the 113 bytes before the property, & 7fffffff, is 2020606268: least digit first.
    _bytes(
        "00000085",
        *_PLAIN_FIELDS,
        "001c" + "4b455953" + "01" + "6b31" + "02",
        "5f5f435243333223" + "01" + "38363236303630323032" + "02",
    ),
    attrs.evolve(
        _PLAIN,
        total_size=133,
        properties_raw=b"KEYS\x01k1\x02__CRC32#\x018626060202\x02",
        properties={"KEYS": "k1", "__CRC32#": "8626060202"},
    ),
    _PLAIN_ID,
)

IPV6 = Vector(
    "IPv6 hosts, no body, no UTF-8",
    _bytes(
        "00000079",
        "daa320a7",
        "00000000",  # CRC32 of nothing
        "00000000" + "00000000",
        "0000000000000000",
        "0000000000000000",
        "00000032",  # sysFlag: both hosts IPv6, MULTI_TAGS
        "0000000000000001",
        "20010db8000000000000000000000001" + "0000ffff",  # bornHost [2001:db8::1]:65535
        "0000000000000002",
        "00000000000000000000000000000001" + "00002a9f",  # storeHost [::1]:10911
        "00000000",
        "0000000000000000",
        "00000000",
        "01" + "ff",  # a topic that is not UTF-8
        "0005" + "4b" + "01" + "fe61" + "02",
    ),
    StoredMessage(
        magic=V1_MAGIC,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        physic_offset=0,
        sys_flag=0x32,
        born_timestamp_ms=1,
        born_host=("2001:db8::1", 65_535),
        store_timestamp_ms=2,
        store_host=("::1", 10_911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"",
        topic="\udcff",
        properties_raw=b"K\x01\xfea\x02",
        total_size=121,
        properties={"K": "\udcfea"},
    ),
    "0000000000000000000000000000000100002A9F0000000000000000",
)

V2 = Vector(
    "V2: a topic of 130 bytes",
    _bytes(
        "000000ea",
        "daa320ab",
        "00000000",
        "ffffffff" + "80000000",  # queueId -1, flag -2^31
        "7fffffffffffffff",
        "0000000000000008",
        "00000010",  # sysFlag: bornHost IPv6
        "0000000000000000",
        "00000000000000000000ffff01020304" + "00000001",  # an IPv4-mapped IPv6 address
        "0000000000000000",
        "01020304" + "00000000",
        "00000000",
        "0000000000000000",
        "00000000",
        "0082" + "74" * 130,
        "0000",
    ),
    StoredMessage(
        magic=V2_MAGIC,
        body_crc=0,
        queue_id=-1,
        flag=-(2**31),
        queue_offset=2**63 - 1,
        physic_offset=8,
        sys_flag=0x10,
        born_timestamp_ms=0,
        born_host=("::ffff:102:304", 1),
        store_timestamp_ms=0,
        store_host=("1.2.3.4", 0),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"",
        topic="t" * 130,
        properties_raw=b"",
        total_size=234,
        properties={},
    ),
    "01020304000000000000000000000008",
)

VECTORS = (NO_PROPERTIES, LAST_SEPARATOR, NO_LAST_SEPARATOR, PROP_CRC, IPV6, V2)

BLANK_OF_848 = _bytes("00000350", "cbd43194")

"""The layout of a record in a commit log: every position, size, magic and flag, and nothing else.

All integers are big-endian and signed; records follow each other without padding::

    off  size  field                      off  size    field
      0   4    totalSize, all of it         48  8|20    bornHost: address 4|16, port 4
      4   4    magic V1 | V2 | BLANK       +0  8       storeTimestamp, ms
      8   4    bodyCRC: CRC32 & 2^31-1     +8  8|20    storeHost
     12   4    queueId                     +0  4       reconsumeTimes
     16   4    flag                        +4  8       preparedTransactionOffset
     20   8    queueOffset                +12  4 + n   bodyLen, body
     28   8    physicalOffset                 1|2 + n  topicLen (V1 | V2), topic
     36   4    sysFlag                        2 + n    propertiesLen, properties
     40   8    bornTimestamp, ms                       [... __CRC32# 01 dddddddddd 02]

A host has 20 bytes if its sysFlag bit is set, else 8: positions from 48 on depend on these two
bits, the record's *host flags*.  Properties are pairs, ``name 01 value 02``.  They may end in
``__CRC32#`` (20 bytes, ten decimal digits, least significant first): the CRC32 of every byte of the
record before those 20.

A file ends in a BLANK::

    0       4       8                                    end of the file
    | size  | magic | filler: any bytes (mostly zeros)   |      size: from here to the file's end

This module is the only owner of the format; ``head_struct`` reads any fields of the head by name.

Source: RocketMQ 4.9.8 ``CommitLog.checkMessageAndReturnSize``, ``CommitLog.calMsgLength``,
``MessageDecoder``, ``MessageSysFlag``; 5.x ``MessageExtEncoder``, ``MessageVersion`` (V2 since
5.1.0).
"""

from __future__ import annotations

import re
import struct
from typing import Final, TypeAlias

from hastore.message import PROPERTY_CRC32

# A memoryview is best: slicing it copies nothing.
Buffer: TypeAlias = bytes | bytearray | memoryview

# -- magics and limits ---------------------------------------------------------------------------

MESSAGE_MAGIC_CODE: Final = -626843481  # 0xDAA320A7
MESSAGE_MAGIC_CODE_V2: Final = -626843477  # 0xDAA320AB, topics of 128 to 32,767 bytes
BLANK_MAGIC_CODE: Final = -875286124  # 0xCBD43194
MESSAGE_MAGICS: Final = (MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2)

MAGIC_SIZE: Final = 4
MESSAGE_MAGIC_BYTES: Final = MESSAGE_MAGIC_CODE.to_bytes(MAGIC_SIZE, signed=True)
BLANK_MAGIC_BYTES: Final = BLANK_MAGIC_CODE.to_bytes(MAGIC_SIZE, signed=True)
MESSAGE_PATTERN: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")

TOPIC_SIZE_MAX_V1: Final = 127
TEXT_SIZE_MAX: Final = 32_767  # of properties, and of a V2 topic
CRC_MASK: Final = 0x7FFFFFFF

# -- sysFlag -------------------------------------------------------------------------------------

COMPRESSED_FLAG: Final = 0x1
MULTI_TAGS_FLAG: Final = 0x2
TRANSACTION_TYPE_MASK: Final = 0xC  # 0: no transaction
TRANSACTION_PREPARED_TYPE: Final = 0x4
TRANSACTION_COMMIT_TYPE: Final = 0x8
TRANSACTION_ROLLBACK_TYPE: Final = 0xC
BORN_HOST_V6_FLAG: Final = 0x10
STORE_HOST_V6_FLAG: Final = 0x20
INNER_BATCH_FLAG: Final = 0x80  # one record that holds a batch
COMPRESSION_TYPE_MASK: Final = 0x700
PRODUCER_FLAGS: Final = COMPRESSED_FLAG | MULTI_TAGS_FLAG | COMPRESSION_TYPE_MASK
SYS_FLAGS_KNOWN: Final = 0x7FF

# -- the head: from totalSize to bodyLen ---------------------------------------------------------

HOST_FLAGS: Final = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
HOST_FLAGS_ALL: Final = (0, BORN_HOST_V6_FLAG, STORE_HOST_V6_FLAG, HOST_FLAGS)
PORT: Final = struct.Struct(">i")  # the last bytes of a host
HOST_SIZE_V4: Final = 4 + PORT.size
HOST_SIZE_V6: Final = 16 + PORT.size


def head_fields(host_flags: int = 0) -> list[tuple[str, str]]:
    """Return the head's fields in order: name, and format code of ``struct``."""
    born_size = HOST_SIZE_V6 if host_flags & BORN_HOST_V6_FLAG else HOST_SIZE_V4
    store_size = HOST_SIZE_V6 if host_flags & STORE_HOST_V6_FLAG else HOST_SIZE_V4
    return [
        ("size", "i"),
        ("magic", "i"),
        ("body_crc", "i"),
        ("queue_id", "i"),
        ("flag", "i"),
        ("queue_offset", "q"),
        ("stored_offset", "q"),
        ("sys_flag", "i"),
        ("born_ms", "q"),
        ("born_host", f"{born_size}s"),
        ("store_ms", "q"),
        ("store_host", f"{store_size}s"),
        ("reconsume_times", "i"),
        ("prepared_transaction_offset", "q"),
        ("body_size", "i"),
    ]


def head_struct(*names: str, host_flags: int = 0) -> struct.Struct:
    """Return a struct that reads the named fields, in the head's order, from a record's start."""
    fields = head_fields(host_flags)
    order = [name for name, _ in fields]
    assert list(names) == [name for name in order if name in names], names
    until_last = fields[: order.index(names[-1]) + 1]
    codes = [
        code if name in names else f"{struct.calcsize('>' + code)}x" for name, code in until_last
    ]
    return struct.Struct(">" + "".join(codes))


def position_of(name: str, host_flags: int = 0) -> int:
    """Return where a field of the head begins in its record."""
    fields = head_fields(host_flags)
    before = fields[: [field for field, _ in fields].index(name)]
    return struct.calcsize(">" + "".join(code for _, code in before))


def split_head(host_flags: int) -> tuple[struct.Struct, struct.Struct]:
    """Return structs of sysFlag to preparedTransactionOffset, and of the head with it as bytes."""
    codes = [code for _, code in head_fields(host_flags)]
    first = [name for name, _ in head_fields()].index("sys_flag")
    middle = struct.Struct(">" + "".join(codes[first:-1]))
    return middle, struct.Struct(f">{''.join(codes[:first])}{middle.size}s{codes[-1]}")


def _whole_head(host_flags: int, *, has_ports: bool) -> struct.Struct:
    codes = [code for _, code in head_fields(host_flags)]
    if has_ports:
        codes = [f"{int(code[:-1]) - PORT.size}si" if "s" in code else code for code in codes]
    return struct.Struct(">" + "".join(codes))


# By host flags: the whole head; the whole head with each host split into address and port.
HEADS: Final = {flags: _whole_head(flags, has_ports=False) for flags in HOST_FLAGS_ALL}
HEADS_WITH_PORTS: Final = {flags: _whole_head(flags, has_ports=True) for flags in HOST_FLAGS_ALL}
BODY_POSITIONS: Final = {flags: head.size for flags, head in HEADS.items()}

SIZE: Final = head_struct("size")
SIZE_AND_MAGIC: Final = head_struct("size", "magic")
SIZE_AND_OFFSET: Final = head_struct("size", "stored_offset")
MAGIC_POSITION: Final = position_of("magic")
BODY_CRC_POSITION: Final = position_of("body_crc")
STORED_OFFSET: Final = struct.Struct(">q")
STORED_OFFSET_POSITION: Final = position_of("stored_offset")
SYS_FLAG_POSITION: Final = position_of("sys_flag")
HOST_FLAGS_POSITION: Final = SYS_FLAG_POSITION + 3  # its last byte holds the host flags
HEAD_READ_SIZE: Final = 128  # a read of this size holds the whole head, whatever the hosts
# The end of a message's id, after the address: the port and the physical offset.
MESSAGE_ID_END: Final = struct.Struct(">iq")

# -- after the body ------------------------------------------------------------------------------

TOPIC_LENGTHS: Final = {
    MESSAGE_MAGIC_CODE: struct.Struct(">b"),
    MESSAGE_MAGIC_CODE_V2: struct.Struct(">h"),
}
PROPERTIES_LENGTH: Final = struct.Struct(">h")
BODY_LENGTH: Final = struct.Struct(">i")  # the head's last field
NAME_END: Final = 1  # the byte after a property's name
PAIR_END: Final = 2  # the byte after its value
NAME_VALUE_SEPARATOR: Final = chr(NAME_END)
PROPERTY_SEPARATOR: Final = chr(PAIR_END)
PROP_CRC_NAME: Final = PROPERTY_CRC32.encode() + NAME_VALUE_SEPARATOR.encode()
PROP_CRC_NAME_SIZE: Final = len(PROP_CRC_NAME)
PROP_CRC_HALVES: Final = (PROP_CRC_NAME[:4], PROP_CRC_NAME[4:])  # of a damaged name one may be left
# The property reversed, because its digits begin with the least significant one.
PROP_CRC_BACKWARDS: Final = b"\x02%010d" + PROP_CRC_NAME[::-1]
PROP_CRC_SIZE: Final = len(PROP_CRC_BACKWARDS % 0)

# -- the smallest and the largest ----------------------------------------------------------------

BLANK_SIZE_MIN: Final = SIZE_AND_MAGIC.size
# All after the body: topic and properties, with their lengths.
TEXTS_SIZE_MIN: Final = TOPIC_LENGTHS[MESSAGE_MAGIC_CODE].size + PROPERTIES_LENGTH.size
TEXTS_SIZE_MAX: Final = (
    TOPIC_LENGTHS[MESSAGE_MAGIC_CODE_V2].size + PROPERTIES_LENGTH.size + 2 * TEXT_SIZE_MAX
)
# 91: V1, both hosts IPv4, no body, topic or properties.
RECORD_SIZE_MIN: Final = BODY_POSITIONS[0] + TEXTS_SIZE_MIN


def claimed_size(data: Buffer, position: int = 0) -> int:
    """Return the unsigned size that a record at a position claims; 0 at the end of the data."""
    return int.from_bytes(data[position : position + SIZE.size])

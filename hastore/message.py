"""Messages as values: a producer's (``Message``), a log's (``StoredMessage``), a put's result.

``hastore.store.record.message_codec`` has their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastore.status import PutMessageStatus

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK: Final = "WAIT"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_DELAY_TIME_LEVEL: Final = "DELAY"
PROPERTY_INNER_NUM: Final = "INNER_NUM"
PROPERTY_CLUSTER: Final = "CLUSTER"  # the broker's cluster, which the broker sets
# RocketMQ's: a half message of a transaction; when a broker of 5.x is to deliver a message.
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"  # of a reply: the client id of the requester
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"  # when the broker pushed it, in ms
PROPERTY_CRC32: Final = "__CRC32#"


@attrs.define(slots=True, eq=True, kw_only=False)
class Message:
    """A message to put.

    ``body`` is 0 to ``max_message_size`` bytes.  ``properties`` maps names to values (without the
    separators U+0001 and U+0002); ``WAIT`` = ``"false"`` asks not to wait for flush and slave.
    ``born_timestamp_ms`` None means the time of the append.  ``born_host`` is ``(address, port)``;
    None means the broker's own.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    queue_id: int = attrs.field(default=0, kw_only=True)
    flag: int = attrs.field(default=0, kw_only=True)
    sys_flag: int = attrs.field(default=0, kw_only=True)
    born_timestamp_ms: int | None = attrs.field(default=None, kw_only=True)
    born_host: tuple[str, int] | None = attrs.field(default=None, kw_only=True)
    reconsume_times: int = attrs.field(default=0, kw_only=True)
    prepared_transaction_offset: int = attrs.field(default=0, kw_only=True)

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the producer waits for flush and slave (``WAIT`` is not ``"false"``)."""
        properties = self.properties
        return properties is None or properties.get(PROPERTY_WAIT_STORE_MSG_OK) != "false"


@attrs.frozen(kw_only=True)
class StoredMessage:
    """One record of a commit log, every field as it stands on disk.

    Consumers and commands get ``body`` decompressed, with the flags of compression cleared in
    ``sys_flag``; ``body_crc`` and ``total_size`` stay those of the record.

    ``properties_raw`` are the properties' stored bytes, so that encoding returns the same record;
    ``properties`` are the parsed ones.  ``body_crc`` is the stored value.
    """

    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physic_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: tuple[str, int]
    store_timestamp_ms: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties_raw: bytes
    total_size: int
    properties: Mapping[str, str]
    # Why ``body`` is still compressed, where it should have been decoded; None if it is not.
    body_fault: str | None = None

    @property
    def next_offset(self) -> int:
        """The physical offset of the record's end (exclusive)."""
        return self.physic_offset + self.total_size


class PutMessageResult(NamedTuple):
    """The outcome of a put.  A NamedTuple, because one is made for every message.

    ``physic_offset`` and ``next_offset`` bound the record (half-open), ``queue_offset`` is its
    position in its queue; all are None if the message was not stored.  For a batch they are those
    of the first message, except that ``next_offset`` is the end of the last; ``message_count`` is
    the number of records.  ``reason`` is one line for people if the status is not PUT_OK.
    """

    status: PutMessageStatus
    topic: str
    queue_id: int
    queue_offset: int | None = None
    physic_offset: int | None = None
    next_offset: int | None = None
    message_count: int = 1
    store_timestamp_ms: int | None = None
    reason: str | None = None
    store_host: bytes = b""  # address and 4-byte port, as in a record
    batch_offsets: tuple[int, ...] | None = None  # of each record, for a batch

    @property
    def ok(self) -> bool:
        """Whether the status is PUT_OK."""
        return self.status.value == "PUT_OK"

    @property
    def message_id(self) -> str | None:
        """RocketMQ's offsetMsgId; a batch's ids are joined by commas; None if not stored."""
        if self.physic_offset is None:
            return None
        return offset_message_ids(self.store_host, self.batch_offsets or (self.physic_offset,))


def offset_message_ids(store_host: bytes, physic_offsets: Sequence[int]) -> str:
    """Return the offsetMsgIds of records, joined by commas; ``store_host`` as in a record."""
    host = store_host.hex().upper()
    return ",".join([f"{host}{offset:016X}" for offset in physic_offsets])

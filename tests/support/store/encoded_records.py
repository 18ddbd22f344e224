"""Records of messages as a log has them, without a log."""

from collections.abc import Sequence

from hastore.message import Message
from hastore.store.record.message_encoder import MessageEncoder
from hastore.store.record.topic_queue_table import TopicQueueTable


def records_of(
    messages: Sequence[Message], start: int, *, store_host: tuple[str, int], has_prop_crc: bool
) -> bytearray:
    """Return the records of messages that a log holds from ``start`` on."""
    encoder = MessageEncoder(
        store_host=store_host, max_message_size=1 << 16, append_prop_crc=has_prop_crc
    )
    table = TopicQueueTable(encoder.bare_properties)
    records = bytearray()
    for number, message in enumerate(messages):
        queues = table.find(message.topic)
        assert queues is not None
        table.topics[message.topic] = queues
        queue_offset = queues.next_offsets.get(message.queue_id, 5)
        queues.next_offsets[message.queue_id] = queue_offset + 1
        end = start + len(records)
        record = encoder.encode(message, queues, queue_offset, end, 1_700_000_000_000 + number)
        assert isinstance(record, bytes), record
        records += record
    return records
